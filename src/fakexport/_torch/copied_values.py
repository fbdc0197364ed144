"""The values of nodes that are made once more: fake tensors in memory of their own. Seen on torch 2.13.

Source: `torch/_subclasses/fake_tensor.py:FakeTensor.__new__`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import in_kernel_invocation_manager

from .fake_tensors import FakeTensor, storage_identity
from .patching import Patches


class TraceNeeded(BaseException):
    """Something asked for what only a trace of the block itself knows: its gradients, or how it computed.

    Not an `Exception`: a model's `except` must not keep it.
    """


class _OfReplayedBlock(torch.autograd.Function):
    """Makes an output part of the graph of autograd, as it would be had the block been traced."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, made: list[torch.Tensor]) -> torch.Tensor:
        return made[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise TraceNeeded("gradients of a block that was not traced itself")


def _as_it_is(number: Any) -> Any:
    return number


def gradients_need_a_trace() -> Patches:
    """Return a context in which asking a result of a block that was not traced how it came about raises
    `TraceNeeded`.
    """
    stock: Any = vars(torch._C.TensorBase)["grad_fn"]

    def grad_fn(tensor: torch.Tensor) -> Any:
        found = stock.__get__(tensor)
        if type(found).__name__ == f"{_OfReplayedBlock.__name__}Backward":
            raise TraceNeeded("the origin of a result of a block that was not traced itself")
        return found

    return Patches({(FakeTensor, "grad_fn"): property(grad_fn)})


def _same(a: Any, b: Any) -> bool:
    """Return whether two numbers are written alike. Asking symbols whether they are equal may add a guard."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(a.node.expr == b.node.expr)


class CopiedValues:
    """Copies of the values of nodes; what shared memory among the originals shares it among the copies."""

    def __init__(self, bases: dict[int, torch.Tensor]) -> None:
        self._bases = bases  # Of each memory of the originals, a tensor that looks at its copy.

    def copied(self, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            return self.fake(value)
        if isinstance(value, (tuple, list)):
            return type(value)([self.copied(item) for item in value])
        return value

    def fake(self, like: FakeTensor, size: Callable[[Any], Any] = _as_it_is) -> FakeTensor:
        shape, strides = tuple(map(size, like.shape)), tuple(map(size, like.stride()))
        identity, device, offset = storage_identity(like), like.device, size(like.storage_offset())
        with torch.no_grad(), in_kernel_invocation_manager(like.fake_mode):
            base = self._bases.get(identity)
            if isinstance(base, FakeTensor):
                base = self._bases[identity] = base.detach()  # Without what autograd knows of an input.
            if base is None:
                meta = torch.empty_strided(shape, strides, dtype=like.dtype, device="meta")
                bytes_ = like.untyped_storage().nbytes()
                if offset == 0 and _same(meta.untyped_storage().nbytes(), bytes_):
                    self._bases[identity] = meta
                    return FakeTensor(like.fake_mode, meta, device)
                count = (bytes_ // like.itemsize,)
                base = self._bases[identity] = torch.empty_strided(
                    count, (1,), dtype=like.dtype, device="meta"
                )
            if base.dtype is like.dtype:
                meta = torch.as_strided(base, shape, strides, offset)  # `set_` would write down other bytes.
            else:
                meta = torch.empty(0, dtype=like.dtype, device="meta")
                meta.set_(base.untyped_storage(), offset, shape, strides)
        return FakeTensor(like.fake_mode, meta, device)

    def tensor(self, like: FakeTensor, size: Callable[[Any], Any]) -> torch.Tensor:
        """Return what a call would have returned instead of `like`."""
        made = self.fake(like, size)
        if not like.is_inference() and like._version:
            torch._C._autograd._unsafe_set_version_counter((made,), (like._version,))
        if not like.requires_grad:
            return made
        with torch.enable_grad():
            source = torch.empty_strided((1,), (1,), dtype=like.dtype, device=like.device).requires_grad_()
            found: torch.Tensor = _OfReplayedBlock.apply(source, [made])  # type: ignore[no-untyped-call]
        return found
