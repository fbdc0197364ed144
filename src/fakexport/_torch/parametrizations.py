"""Parametrizations that take a wrapper subclass apart, as `unwrap_tensor_subclass` registers them.

`right_inverse` of torch's and of torchao's `UnwrapTensorSubclass` looks for inner tensors whose class is
exactly `torch.Tensor`; a fake one is taken for another wrapper. Here it gets the wrapper around meta tensors,
and each of those that it returns stands for the fake one. Seen on torch 2.11 to 2.13, torchao 0.18.

Source: `torch/_functorch/_aot_autograd/subclass_parametrization.py`, `torchao/utils.py`;
`torch/nn/utils/parametrize.py:ParametrizationList.__init__`, which calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.utils.parametrize import ParametrizationList

from .fake_tensors import FakeTensorMode, is_fake_of, meta_of
from .patching import Patches, in_force
from .real_execution import real_execution
from .wrapper_subclasses import is_wrapper, rewrapped


def wrappers_can_be_unwrapped(mode: FakeTensorMode) -> Patches:
    """Return a context in which a parametrization may take a wrapper of fakes apart."""
    stock_init: Callable[..., None] = in_force(ParametrizationList, "__init__")

    def init(self: Any, modules: Iterable[Any], original: Any, unsafe: bool = False) -> None:
        modules = list(modules)
        if not (is_wrapper(original) and is_fake_of(original, mode)):
            return stock_init(self, modules, original, unsafe)
        inverses = [m for m in modules if hasattr(m, "right_inverse")]
        for module in inverses:
            vars(module)["right_inverse"] = _on_stand_ins(module.right_inverse)
        try:
            return stock_init(self, modules, original, unsafe)
        finally:
            for module in inverses:
                del vars(module)["right_inverse"]

    return Patches({(ParametrizationList, "__init__"): init})


def _on_stand_ins(inverse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def right_inverse(value: Any) -> Any:
        try:
            return inverse(value)
        except AttributeError as error:
            if "__tensor_flatten__" not in str(error) or not is_wrapper(value):
                raise
        stood_for: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def stand_in(fake: torch.Tensor) -> torch.Tensor:
            meta = meta_of(fake)
            stood_for[id(meta)] = (meta, fake)
            return meta

        with real_execution():
            parts = inverse(rewrapped(value, stand_in))
        return [stood_for[id(part)][1] for part in parts]

    return right_inverse
