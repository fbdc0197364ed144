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
or a mean. No shape is wrong, so nothing else reports it. fakexport follows each part of a weight through the
ExportedProgram of the rank, operator by operator, and refuses what it cannot show to be the rank's share of
the model's result. An operator without a sharding rule is refused too.
""",
    how_to_repair="""
Change the plan for the module that the diagnostic names: `packed_colwise` for packed weights,
`colwise_gather_output` for a projection whose output the model needs in full, `rowwise` or `moe_tp_experts`
for the layer whose results have to be added up; or leave the module out of the plan. `--parallel
tp=2,plan=FILE.json` reads a plan of your own. In a model of your own, write `view(batch, tokens, -1,
head_dim)` in place of the number of heads.
""",
    failing_model=None,
    repair=None,
    fails_on="never",
)
