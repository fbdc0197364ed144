"""Every private use of torch: the only package that may name `torch._*` or patch torch.

Each module covers one need and names the torch versions it was seen on. A fact test of the same name in
`tests/torch_facts/` fails if an upgrade changes the torch internals that the module relies on.
"""
