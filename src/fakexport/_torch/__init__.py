"""All uses of private torch APIs. Only this package may use `torch._*` or patch torch.

Each module serves one purpose and names the torch versions that it was checked with. The test of the same
name in `tests/torch_facts/` fails if a torch upgrade changes internals that the module relies on.
"""
