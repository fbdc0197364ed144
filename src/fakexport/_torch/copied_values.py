"""The values of nodes that are made once more: fake tensors in memory of their own. Seen on torch 2.13."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch._subclasses.fake_tensor import in_kernel_invocation_manager

from .fake_tensors import FakeTensor, FakeTensorMode, storage_identity
from .new_fakes import NewFakes
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


_META = torch.device("meta")


@dataclass(frozen=True)
class Returned:
    """What a call returned, as it was then: the caller may change it in place.

    Args:
        like: Another tensor in the same memory.
        version: How often the returned one had been written to.
        requires_grad: Whether the returned one requires a gradient.
        base: For a view, what autograd knows as its base.
        creation: For a view, what autograd forbids to do with it.
    """

    like: FakeTensor
    version: int
    requires_grad: bool
    base: Returned | None = None
    creation: Any = None

    @classmethod
    def of(cls, tensor: FakeTensor, base: Returned | None = None) -> Returned:
        """Return what a tensor is now; `base` is that of a view."""
        like = CopiedValues({storage_identity(tensor): tensor}).fake(tensor)
        creation = None if base is None else torch._C._autograd._get_creation_meta(tensor)
        version = 0 if tensor.is_inference() else tensor._version
        return cls(like, version, tensor.requires_grad, base, creation)


def gradients_need_a_trace() -> Patches:
    """Return a context in which asking a result of a block that was not traced how it came about raises
    `TraceNeeded`.
    """
    stock: Any = vars(torch._C.TensorBase)["grad_fn"]

    def grad_fn(tensor: torch.Tensor) -> Any:
        found = stock.__get__(tensor)
        # `as_strided` makes each view that a block returned, and autograd names it again after a write.
        # A view that the model makes in this way costs a trace more, if it is asked.
        if type(found).__name__ in (f"{_OfReplayedBlock.__name__}Backward", "AsStridedBackward0"):
            raise TraceNeeded("the origin of a result of a block that was not traced itself")
        return found

    return Patches({(FakeTensor, "grad_fn"): property(grad_fn)})


@dataclass(frozen=True)
class ValueFacts:
    """What a copy of a fake tensor needs to know of it, found out once for all copies."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    bytes: Any
    memory: int
    dtype: torch.dtype
    device: torch.device
    mode: FakeTensorMode

    @classmethod
    def of(cls, like: FakeTensor, size: Callable[[Any], Any] | None = None) -> ValueFacts:
        shape, strides, offset = tuple(like.shape), tuple(like.stride()), like.storage_offset()
        if size is not None:
            shape, strides, offset = tuple(map(size, shape)), tuple(map(size, strides)), size(offset)
        bytes_ = like.untyped_storage().nbytes()
        return cls(
            shape, strides, offset, bytes_, storage_identity(like), like.dtype, like.device, like.fake_mode
        )

    @cached_property
    def layout(self) -> torch.Tensor:
        """A tensor of these sizes in memory that no copy has."""
        return _reserved(self.bytes, self.shape, self.strides, self.offset, self.dtype)

    @cached_property
    def is_of_numbers(self) -> bool:
        """Whether no size is symbolic."""
        return all(type(number) is int for number in (*self.shape, *self.strides, self.offset))


class Originals:
    """What copies of the same values have in common, found out once. The values must stay alive."""

    def __init__(self) -> None:
        self._facts: dict[int, ValueFacts] = {}
        self.fakes = NewFakes()

    def facts_of(self, like: FakeTensor) -> ValueFacts:
        found = self._facts.get(id(like))
        if found is None:
            found = self._facts[id(like)] = ValueFacts.of(like)
        return found


class CopiedValues:
    """Copies of the values of nodes; what shared memory among the originals shares it among the copies.

    Args:
        bases: For each memory of the originals that the copies have already, a tensor that looks at it.
        originals: What is known of the values, for all of their copies.
    """

    def __init__(self, bases: dict[int, torch.Tensor], originals: Originals | None = None) -> None:
        self._bases = bases
        self._originals = originals or Originals()
        self._returned: dict[int, torch.Tensor] = {}

    def copied(self, value: Any) -> Any:
        """Return a copy of a value: a fake tensor, a container of them, or anything else, as it is."""
        return self.all_copied([value])[0]

    def all_copied(self, values: Sequence[Any]) -> list[Any]:
        """Return copies of the values, in an order in which memory is met as among the originals."""
        facts = [self._originals.facts_of(leaf) for value in values for leaf in _fakes(value)]
        made = iter(self._made(facts))
        return [_with_fakes(value, made) for value in values]

    def fake(self, like: FakeTensor, size: Callable[[Any], Any] | None = None) -> FakeTensor:
        """Return a copy of a fake tensor, each number of which `size` may replace."""
        facts = self._originals.facts_of(like)
        if size is not None and not facts.is_of_numbers:
            facts = ValueFacts.of(like, size)
        return self._made([facts])[0]

    def tensor(self, returned: Returned, size: Callable[[Any], Any]) -> torch.Tensor:
        """Return what another call would have returned; the same one each time, for the views of it."""
        found = self._returned.get(id(returned))
        if found is None:
            make = self._new if returned.base is None else self._view
            found = self._returned[id(returned)] = make(returned, size)
        return found

    def _view(self, returned: Returned, size: Callable[[Any], Any]) -> torch.Tensor:
        assert returned.base is not None
        base = self.tensor(returned.base, size)
        facts = ValueFacts.of(returned.like, size)
        with _unnoticed(facts.mode), torch.set_grad_enabled(returned.requires_grad):
            made = base.as_strided(facts.shape, facts.strides, facts.offset)
        torch._C._autograd._set_creation_meta(made, returned.creation)
        return made

    def _new(self, returned: Returned, size: Callable[[Any], Any]) -> torch.Tensor:
        like = returned.like
        made = self.fake(like, size)
        if returned.version:
            torch._C._autograd._unsafe_set_version_counter((made,), (returned.version,))
        if not returned.requires_grad:
            return made
        with torch.enable_grad():
            source = torch.empty_strided((1,), (1,), dtype=like.dtype, device=like.device).requires_grad_()
            found: torch.Tensor = _OfReplayedBlock.apply(source, [made])  # type: ignore[no-untyped-call]
        return found

    def _made(self, wanted: Sequence[ValueFacts]) -> list[FakeTensor]:
        mode = wanted[0].mode if wanted else None
        if any(facts.mode is not mode for facts in wanted):
            return [self._made([facts])[0] for facts in wanted]
        if mode is None:
            return []
        with torch.no_grad(), in_kernel_invocation_manager(mode):
            return [self._copy(facts) for facts in wanted]

    def _copy(self, facts: ValueFacts) -> FakeTensor:
        base = self._bases.get(facts.memory)
        if base is None:
            base = self._bases[facts.memory] = _reserved(facts.bytes)
        # `data` counts its changes by itself, and computes nothing of what it is of.
        return self._originals.fakes.new(facts.mode, facts.layout.data, facts.device, base)


def _reserved(
    bytes_: int | torch.SymInt,
    shape: tuple[Any, ...] = (0,),
    strides: tuple[Any, ...] | None = None,
    offset: Any = None,
    dtype: torch.dtype = torch.uint8,
) -> torch.Tensor:
    """Return a tensor in new memory. Of symbolic numbers nothing is computed, and nothing is asked."""
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(
        FakeTensor, shape, strides, offset, dtype=dtype, device=_META, storage_size=bytes_
    )
    return made


@contextmanager
def _unnoticed(mode: FakeTensorMode) -> Iterator[None]:
    """Enter a context in which an operator leaves no guard, and nothing in what fake mode remembers: what is
    there decides which nodes a later operator leaves.
    """
    remembers = mode.cache_enabled
    mode.cache_enabled = False
    try:
        with mode.shape_env.suppress_guards() if mode.shape_env else nullcontext():
            yield
    finally:
        mode.cache_enabled = remembers


def _fakes(value: Any) -> Iterator[FakeTensor]:
    if isinstance(value, FakeTensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _fakes(item)


def _with_fakes(value: Any, made: Iterator[FakeTensor]) -> Any:
    """Return the value with the next of the copies in place of each fake tensor."""
    if isinstance(value, FakeTensor):
        return next(made)
    if isinstance(value, (tuple, list)):
        return type(value)([_with_fakes(item, made) for item in value])
    return value
