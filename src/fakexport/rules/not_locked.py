"""FE002: a model has no entry in the lock."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE002",
    name="not_locked",
    severity="error",
    message="model has no entry in fakexport.lock",
    why="""
`fakexport check --locked` compares each exported program with the one that `fakexport.lock` remembers. This
model, or this target of it, has no entry there, so nothing can be said of what changed. It is an error,
because a model that is not locked would pass every later check, whatever becomes of its program.
""",
    how_to_repair="""
Run the same command with `--update-lock` instead of `--locked`, look at the entry that it adds, and commit
the file. `fakexport lock` does the same for all models of `pyproject.toml`.
""",
    failing_model=None,
    repair=None,
    fails_on="never",
    fault="inputs",
)
