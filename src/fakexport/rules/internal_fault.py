"""FE001: fakexport itself failed."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE001",
    name="internal_fault",
    severity="error",
    message="fakexport itself failed",
    why="""
fakexport raised an error that does not come from the model, its inputs or torch. The target on which it
happened has no verdict: the model may export, or may not. Other targets of the same check are not
affected. Please report every one of these: a check that crashes is worth less than a check that fails.
""",
    how_to_repair="""
Run the command again with `--debug`, which prints the traceback. Report the traceback, the command, the
output of `python -m torch.utils.collect_env`, and the model's source or its `hf:` name. Weights are never
needed. There is nothing to fix in your code: the fix has to be made in fakexport.
""",
    failing_model=None,
    repair=None,
    fails_on="never",
    fault="fakexport",
)
