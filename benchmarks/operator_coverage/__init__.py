"""How many of PyTorch's own operators work on fake `cuda:0` under emulation as they do on fake `cpu`.

`python -m benchmarks.operator_coverage --help` says how to run it; `docs/operators.md` holds the result.
"""
