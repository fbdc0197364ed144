"""Models of which torch.export makes a program that is not theirs, without an error.

`cases` has the models, `outcome` what comes of one, and `page` writes `docs/wrong_programs.md`:
`python -m tests.wrong_programs`.
"""
