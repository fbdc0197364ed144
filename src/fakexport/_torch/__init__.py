"""The only room that may write `torch._` or patch torch.

One module per need. Each says which torch versions it was seen on, and has a fact test in
`tests/torch_facts/` that fails by name when an upgrade moves what it relies on.
"""
