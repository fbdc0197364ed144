"""`tensor.data` while a model is traced.

It never reaches a dispatch mode: what `x.data` returns is a tensor that the trace has not seen, and becomes a
constant; and a trace goes on with the old value after `x.data = y`. torch.export refuses the first where the
constant is a fake tensor, and makes a wrong program of the second. Seen on torch 2.13 and 2.15.

Source: `torch/csrc/autograd/python_variable.cpp:THPVariable_get_data`, `THPVariable_set_data`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from .patching import Patches, in_force, outside_of_patches

DATA_ASSIGNED = "torch.export does not see that `.data` is assigned"


def data_attribute_traced() -> Patches:
    """Return a context in which a trace sees `x.data` as `x.detach()`, and in which an assignment raises a
    RuntimeError that begins with `DATA_ASSIGNED`.

    `Module.to` assigns too; it fails at what else it does.
    """
    stock: Any = in_force(FakeTensor, "data")

    def get(tensor: torch.Tensor) -> Any:
        return stock.__get__(tensor) if get_proxy_mode() is None else tensor.detach()

    def set_(tensor: torch.Tensor, other: torch.Tensor) -> None:
        asking = outside_of_patches(sys._getframe(1))
        is_moving = asking is not None and asking.f_code is torch.nn.Module._apply.__code__
        if get_proxy_mode() is not None and not is_moving:
            raise RuntimeError(f"{DATA_ASSIGNED}: the program would go on with the old value")
        stock.__set__(tensor, other)

    return Patches({(FakeTensor, "data"): property(get, set_)})
