"""Find the memory that one operator call allocates, by running it on fake tensors.

Composite operators (`aten.reshape`, `aten.matmul`, `aten.scaled_dot_product_attention`) may return a view
or a copy and may create intermediate tensors. The schema does not say which, but on fake tensors they run
the same code as on real ones. Seen on torch 2.11 to 2.13.

Source: `c10/core/StorageImpl.h` (the storage of a fake tensor has the same size as that of a real tensor);
`c10/core/AllocatorConfig.h`; `aten/src/ATen/native/mkldnn/Utils.h:mkldnn_bf16_device_check`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef

from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.dispatch_observer import observed
from fakexport._torch.tracing.symbolic_numbers import hint_of

Workspace = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], Iterable[tuple[str, Any]]]
"""A function that takes an operator, its arguments and its result, and returns the workspaces of its kernel.

Each workspace is given as (device, bytes). `bytes` is None if it is unknown.
"""

BLOCK_BYTES = 512
"""Allocation sizes are rounded up to a multiple of this: `kMinBlockSize`."""

SMALL_BYTES = 1 << 20
"""Size of the largest allocation from the small pool: `kSmallSize`."""

SMALL_SEGMENT_BYTES = 2 << 20
"""Size of the segments that the small pool requests from the driver: `kSmallBuffer`."""

OWN_SEGMENT_BYTES = 10 << 20
"""Allocations of at least this size get a segment of their own: `kMinLargeAlloc`."""

LARGE_SEGMENT_BYTES = 20 << 20
"""Size of the segments that the large pool requests for smaller allocations: `large_segment_size_`."""

ROUND_LARGE_BYTES = 2 << 20
"""A segment for a single allocation is rounded up to a multiple of this size: `kRoundLarge`."""

_CHECKS: Mapping[torch.dtype, str] = {
    torch.bfloat16: "_is_mkldnn_bf16_supported",
    torch.float16: "_is_mkldnn_fp16_supported",
}
_CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_LINEAR = frozenset(f"aten::{name}" for name in ("linear", *_CELLS, *(f"{cell}_cell" for cell in _CELLS)))
"""Operators that call `at::linear`. It adds the bias in place, except for fake tensors.

Source: `aten/src/ATen/native/Linear.cpp:linear`, which checks `isTensorSubclassLike`.
"""
_PRODUCTS = ("aten.mm.default", "aten.bmm.default")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory allocated during a call."""

    operator: str  # The operator that allocates the memory. A call may run several operators.
    device: str  # For example `cpu` or `cuda:0`.
    bytes: Any  # A number or a `SymInt`.
    shape: tuple[Any, ...] | None = None  # Shape of the tensor that uses the memory; None for a workspace.
    dtype: torch.dtype | None = None  # Dtype of that tensor; None for a workspace.


@dataclass(frozen=True, slots=True)
class CallMemory:
    """Allocations and frees of one call.

    Args:
        events: In execution order, `k` for making allocation k, and `~k` for freeing it. The memory of
            results is not freed.
        outputs: For each result tensor, `k` if it uses allocation k, or `~i` if it uses the memory of
            argument i.
    """

    allocations: tuple[Allocation, ...]  # In the order in which they are made.
    events: tuple[int, ...]
    outputs: tuple[int, ...]
    unknown: tuple[str, ...] = ()  # Operators inside the call whose workspace is unknown.


def is_composite(operator: OpOverload) -> bool:
    """Return whether an operator calls other operators. Only running it shows what it allocates."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


def call_memory(
    mode: FakeTensorMode, operator: OpOverload, args: Any, kwargs: Any, workspace: Workspace
) -> CallMemory:
    """Run an operator on fake tensors and return its allocations and frees.

    Args:
        mode: The mode of the fake tensors. The call may add guards to its `ShapeEnv`; `without_new_guards`
            prevents that.
        args, kwargs: Fake tensors, and symbolic numbers for sizes.
    """
    recorder = _Recorder(tensors_in((args, kwargs)), workspace, is_linear=operator._schema.name in _LINEAR)
    with torch.no_grad(), mode, observed(mode, recorder):
        result = operator(*args, **kwargs)
    return recorder.finished(tensors_in(result))


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a pytree, in export's order."""
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
        """Record that adding a bias to a product happens in place, in the memory of the product."""
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
        """Record which memory was freed since the last operator. Later tensors may reuse its address."""
        for address, (index, reference) in list(self._alive.items()):
            if reference.expired():
                del self._alive[address], self._homes[address]
                self.events.append(~index)


def _bytes(tensor: torch.Tensor, memory: torch.UntypedStorage) -> Any:
    """Return the size of a tensor's memory.

    Some C++ code allocates memory for the sizes of the example inputs, even if the tensor's sizes are
    symbolic. In this case, return the symbolic size.
    """
    held, needed = memory.nbytes(), tensor.numel() * tensor.itemsize
    if isinstance(held, int) and isinstance(needed, torch.SymInt) and hint_of(needed) == held:
        return needed
    return held


def _memory(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    if isinstance(tensor, FakeTensor) or type(tensor) is torch.Tensor:
        return tensor.untyped_storage() if torch._C._has_storage(tensor) else None
    return None


@functools.cache
def is_computed_by_onednn(dtype: torch.dtype) -> bool | None:
    """Return whether oneDNN supports a dtype on this processor, or None if torch does not report it."""
    if dtype is torch.float32:
        return bool(torch.backends.mkldnn.is_available())
    if dtype not in _CHECKS or not torch.backends.mkldnn.is_available():
        return False
    check = getattr(torch.ops.mkldnn, _CHECKS[dtype], None)
    return None if check is None else bool(check())
