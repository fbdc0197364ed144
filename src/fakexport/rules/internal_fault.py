"""FE001: fakexport itself failed."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE001",
    name="internal_fault",
    severity="error",
    message="fakexport itself failed; this says nothing about the model",
    why="""
An error was raised that fakexport expects neither from the model, nor from its inputs, nor from torch.
The target that it happened on has no verdict: the model may export, or may not. Other targets of the same
check are not affected. We want to know about every one of these, because a check that breaks is worth less
than a check that fails.
""",
    how_to_repair="""
Run the command again with `--debug`, which shows the traceback. Report the traceback, the command, the
output of `python -m torch.utils.collect_env`, and the model's source or its `hf:` name. Weights are never
needed. A fix cannot be given here: it has to be made in fakexport.
""",
    failing_model=None,
    repaired_model=None,
    fails_on="never",
    fault="fakexport",
)
