"""FE003: a program differs from the locked one."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE003",
    name="program_moved",
    severity="error",
    message="exported program differs from fakexport.lock",
    why="""
The model exports to another program than when it was locked, or its verdict, its diagnostics or the memory of
its weights changed. The cause is a change of the model's code, of its configuration, or of a library: an
upgrade of torch or transformers can change what is traced without a change of yours. The notes say what moved
in the words of `fakexport diff`, and the place is a line of the model whose operators changed. A model that
still exports can have become slower, larger, or a different function.
""",
    how_to_repair="""
If the change is meant, run the same command with `--update-lock` instead of `--locked`, and commit the file.
If it is not, undo what caused it; the note on versions names the libraries that are not those of the lock. To
see the two programs node by node, export both to archives and run `fakexport diff`.
""",
    failing_model=None,
    repair=None,
    fails_on="never",
)
