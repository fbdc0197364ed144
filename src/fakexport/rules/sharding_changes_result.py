"""FE405: by this plan, the ranks do not compute what the model computes."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE405",
    name="sharding_changes_result",
    severity="error",
    message="tensor parallel plan changes the result",
    why="""
Under `--parallel`, each rank holds a part of each sharded weight. Some plans trace without an error and
compute something else than the model: they shard a weight that packs two (`gate_up_proj`) as one, leave out
an `all_reduce`, add up what every rank has in full, or shard features over which the model takes a `softmax`
or a mean. Code can do the same: `x / x.shape[-1]` divides sharded features by their number on one rank.
No shape is wrong, so nothing else reports it. fakexport follows each part of a weight through the
ExportedProgram of the rank, operator by operator, and rejects what it cannot show to be the rank's share of
the model's result. An operator without a sharding rule is rejected too. The same code is also traced with
the sizes of the whole model: the program of a rank has to compute with the same numbers.
""",
    how_to_repair="""
Change the plan for the module that the diagnostic names: `packed_colwise` for packed weights,
`colwise_gather_output` for a projection whose output the model needs in full, `rowwise` or `moe_tp_experts`
for the layer whose results have to be added up; or leave the module out of the plan. `--parallel
tp=2,plan=FILE.json` reads a plan of your own. In a model of your own, write `view(batch, tokens, -1,
head_dim)` instead of the number of heads, and compute with sizes of the config (`self.config.hidden_size`)
instead of sizes of sharded tensors (`x.shape[-1]`).
""",
    failing_model=None,
    repair=None,
    fails_on="never",
)
