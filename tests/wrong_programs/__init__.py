"""Models that torch.export exports wrong, without an error.

`cases` has the models, `fixes` the fixed models, `outcome` compares programs with eager mode, and `page`
writes `docs/wrong_programs.md`: `python -m tests.wrong_programs`.
"""
