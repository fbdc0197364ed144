"""FE104: an input that the model uses was not derived, so a part of the model was not traced."""

from fakexport.rules.rule import Rule

RULE = Rule(
    code="FE104",
    name="input_not_derived",
    severity="warning",
    message="input used by the model was not derived",
    why="""
The example inputs of an `hf:` model are derived from its config. One input could not be derived: it comes
with other inputs that no config determines, such as the sizes of image tiles. The model was traced
without it, so the exported program lacks the part of the model that takes it, such as a vision tower.
Nodes, devices, transfers and diagnostics describe the rest. A program without a part of the model is not
the model, so this warning counts: the report is not clean, and the exit code is 1.
""",
    how_to_repair="""
Where the note says that eager mode fails on such an input too, the config contradicts itself: pass that
of a published model. Else write a factory that returns the model and all of its inputs, `(module, (),
{"input_ids": ..., ...})`, and check `file.py:factory`. If you want to measure only the part that was
exported, name its inputs with `--input`. The inputs are then yours, and the report only notes which
parameters the program does not use.
""",
    failing_model=None,
    repair=None,
    fails_on="never",
    fault="inputs",
)
