"""What memory one call of an operator takes, found out by running it on fake tensors.

Operators made of others (`aten.reshape`, `aten.matmul`, `aten.scaled_dot_product_attention`) may return a
view or a copy and make tensors in between; the schema does not say which, and on fakes they run the code that
they run on real tensors. Seen on torch 2.11 to 2.13.

Source: `c10/core/StorageImpl.h`: a fake's storage has the bytes that a real one would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from .dispatch_observer import observed
from .operator_registry import OpOverload
from .pytree import tree_leaves
from .symbolic_numbers import hint_of

Workspace = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], Iterable[tuple[str, Any]]]
"""Operator, arguments and result of an operator -> device and bytes of what its kernel takes for itself; None
for bytes that are not known.
"""

_CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_LINEAR = frozenset(f"aten::{name}" for name in ("linear", *_CELLS, *(f"{cell}_cell" for cell in _CELLS)))
"""Operators that call `at::linear`, which adds the bias to a product in place, but not on fakes.

Source: `aten/src/ATen/native/Linear.cpp:linear`, which asks `isTensorSubclassLike`.
"""
_PRODUCTS = ("aten.mm.default", "aten.bmm.default")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that a call takes.

    Args:
        operator: The operator inside of the call that takes it.
        device: `cpu`, `cuda:0`.
        bytes: A number or a `SymInt`.
        shape: Shape of the tensor that it is for; None for a kernel's own.
        dtype: Dtype of that tensor; None for a kernel's own.
    """

    operator: str
    device: str
    bytes: Any
    shape: tuple[Any, ...] | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class CallMemory:
    """What a call does to memory.

    Args:
        allocations: What it takes, in the order in which it does.
        events: `k` where allocation k is taken, `~k` where it is given back; those of results stay.
        outputs: For each result tensor: `k` for allocation k, `~i` for the memory of the i-th argument.
        unknown: Operators inside of the call whose kernels take memory that is not known.
    """

    allocations: tuple[Allocation, ...]
    events: tuple[int, ...]
    outputs: tuple[int, ...]
    unknown: tuple[str, ...] = ()


def is_composite(operator: OpOverload) -> bool:
    """Return whether an operator is made of others, so that only running it tells what it allocates."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


def call_memory(
    mode: FakeTensorMode, operator: OpOverload, args: Any, kwargs: Any, workspace: Workspace
) -> CallMemory:
    """Run an operator on fakes and return what it does to memory.

    Args:
        mode: The mode of the fakes. Its shape environment may learn; see `without_new_guards`.
        operator: One that changes none of its arguments' sizes.
        args, kwargs: Fakes instead of tensors, symbolic numbers instead of sizes.
        workspace: Asked after each operator that a kernel runs.
    """
    recorder = _Recorder(tensors_in((args, kwargs)), workspace, is_linear=operator._schema.name in _LINEAR)
    with torch.no_grad(), mode, observed(mode, recorder):
        result = operator(*args, **kwargs)
    return recorder.finished(tensors_in(result))


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested container, in export's order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class _Recorder:
    def __init__(self, arguments: list[torch.Tensor], workspace: Workspace, *, is_linear: bool) -> None:
        self._homes: dict[int, int] = {}
        self._kept = [_memory(tensor) for tensor in arguments]
        for index, memory in reversed(list(enumerate(self._kept))):
            if memory is not None:
                self._homes[memory._cdata] = ~index
        self._workspace = workspace
        self._is_linear = is_linear
        self._unknown: list[str] = []
        self._alive: dict[int, tuple[int, StorageWeakRef]] = {}
        self.allocations: list[Allocation] = []
        self.events: list[int] = []

    def __call__(
        self, run: Callable[..., Any], operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        self._give_back()
        result = run()
        name = str(operator)
        if self._is_linear and name == "aten.add.Tensor":
            self._add_in_place(args, result)
        for tensor in tensors_in(result):
            self._note(tensor, name)
        first = len(self.allocations)
        for device, size in self._workspace(operator, args, kwargs, result):
            if size is None:
                self._unknown.append(name)
            else:
                self._take(Allocation(name, device, size))
        self.events += [~index for index in range(first, len(self.allocations))]
        return result

    def finished(self, results: list[torch.Tensor]) -> CallMemory:
        for tensor in results:
            self._note(tensor, "")
        homes = [self._homes[memory._cdata] for tensor in results if (memory := _memory(tensor)) is not None]
        self._give_back()
        unknown = tuple(dict.fromkeys(self._unknown))
        return CallMemory(tuple(self.allocations), tuple(self.events), tuple(homes), unknown)

    def _add_in_place(self, args: Sequence[Any], result: torch.Tensor) -> None:
        """Let the sum of a product and a bias be in the memory of the product."""
        product, bias = args
        memory, own = _memory(product), _memory(result)
        index = -1 if memory is None else self._homes.get(memory._cdata, -1)
        if memory is None or own is None or index < 0 or bias.dim() != 1:
            return
        if self.allocations[index].operator in _PRODUCTS:
            del self._homes[memory._cdata], self._alive[memory._cdata]
            self._homes[own._cdata] = index
            self._alive[own._cdata] = (index, StorageWeakRef(own))

    def _note(self, tensor: torch.Tensor, operator: str) -> None:
        memory = _memory(tensor)
        if memory is None or memory._cdata in self._homes:
            return
        index = len(self.allocations)
        self._homes[memory._cdata] = index
        self._alive[memory._cdata] = (index, StorageWeakRef(memory))
        shape = tuple(tensor.shape)
        self._take(Allocation(operator, str(tensor.device), _bytes(tensor, memory), shape, tensor.dtype))

    def _take(self, allocation: Allocation) -> None:
        self.events.append(len(self.allocations))
        self.allocations.append(allocation)

    def _give_back(self) -> None:
        """Note what has died since the last operator; its address may be another's from now on."""
        for address, (index, reference) in list(self._alive.items()):
            if reference.expired():
                del self._alive[address], self._homes[address]
                self.events.append(~index)


def _bytes(tensor: torch.Tensor, memory: torch.UntypedStorage) -> Any:
    """Return the bytes of a tensor's memory.

    Some code in C++ makes the memory at the sizes of the example, for a tensor of symbolic sizes.
    """
    held, needed = memory.nbytes(), tensor.numel() * tensor.itemsize
    if isinstance(held, int) and isinstance(needed, torch.SymInt) and hint_of(needed) == held:
        return needed
    return held


def _memory(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    if isinstance(tensor, FakeTensor) or type(tensor) is torch.Tensor:
        return tensor.untyped_storage() if torch._C._has_storage(tensor) else None
    return None
