"""Count PyTorch operators that behave the same on emulated fake `cuda:0` tensors as on fake `cpu` tensors.

`python -m benchmarks.operator_coverage --help` shows how to run it. The results are in `docs/operators.md`.
"""
