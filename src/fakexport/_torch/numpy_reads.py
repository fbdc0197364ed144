"""Going on where the model takes a tensor's data to NumPy. Seen on torch 2.11 to 2.13.

A traced tensor is a subclass, which `numpy` refuses; `numpy.asarray(tensor)` ends in the same method.

Source: `torch/csrc/utils/tensor_numpy.cpp:tensor_to_numpy`, `torch/_tensor.py:Tensor.__array__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .patching import Patches, in_force


def answered_numpy_reads(may_go_on: Callable[[Exception], bool]) -> Patches:
    """Return a context in which a refused `numpy()` gives ones of the right shape, if `may_go_on` says so."""
    stock = in_force(torch.Tensor, "numpy")

    def numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
        try:
            return stock(tensor, force=force)
        except (RuntimeError, TypeError) as error:
            if not may_go_on(error):
                raise
        import numpy

        name = str(tensor.dtype).removeprefix("torch.")
        return numpy.ones([int(size) for size in tensor.shape], "float32" if name == "bfloat16" else name)

    return Patches({(torch.Tensor, "numpy"): numpy})
