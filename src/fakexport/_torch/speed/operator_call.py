"""One operator call in a trace, and the key of everything that its result may depend on. Seen on torch 2.13.

Source: `torch/fx/experimental/proxy_tensor.py:proxy_call`, `torch/_subclasses/fake_tensor.py:FakeTensor`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.fx import Node, Proxy
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fakexport._torch.emulation.fake_tensors import FakeTensor, FakeTensorMode
from fakexport._torch.kernels.kernel_mode import alias_of, kernel_mode
from fakexport._torch.tracing.data_dependent_questions import catches_questions

from .symbolic_arithmetic import SymbolicArithmetic

_CONSTANTS = frozenset(
    {int, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, type(...)}
)
# An attribute of tensors with symbolic sizes whose contiguity stock torch would have computed by now.
_UNCOMPARED = "_fakexport_uncompared"


class NoKey(Exception):
    """A call has an argument that a key of the memo cannot represent."""


def compare_later(tensor: FakeTensor) -> None:
    """Leave it to `compare` to compute the contiguity of a tensor with symbolic sizes.

    This takes a sixth of a trace, and only few tensors reach code that asks for it, outside of the memo.
    """
    tensor.__dict__[_UNCOMPARED] = True


def compare(values: Iterable[Any]) -> None:
    """Compute and cache the contiguity that is due for tensors, also in lists, without adding guards."""
    for value in values:
        if isinstance(value, (list, tuple)):
            compare(value)
        elif type(value) is FakeTensor and value.__dict__.pop(_UNCOMPARED, False):
            with _untraced(value.fake_mode):
                value.is_contiguous()


@contextmanager
def _untraced(mode: FakeTensorMode) -> Iterator[None]:
    """Enter a context in which queries about sizes leave no nodes and no guards."""
    environment = mode.shape_env
    unguarded = nullcontext() if environment is None else environment.suppress_guards()
    with proxy_tensor.disable_proxy_modes_tracing(), kernel_mode(mode), unguarded:
        yield


class OperatorCall:
    """The arguments of one operator call.

    Attributes:
        tensors: The tensor arguments, each once.
        numbers: The symbolic numbers in tensor metadata and among the arguments.
        devices: The devices of the call that can be exchanged for an equivalent one, each once.
    """

    def __init__(
        self,
        tracer: Any,
        fake_mode: FakeTensorMode,
        arithmetic: SymbolicArithmetic,
        kinds: Mapping[torch.device, Hashable],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.tracer = tracer
        self._arithmetic = arithmetic
        self._kinds = kinds
        self.fake_mode = fake_mode
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.tensors: list[FakeTensor] = []
        self.numbers: list[Any] = []
        self.devices: list[torch.device] = []
        self._memories: list[int] = []
        self._nodes: list[Node] = []

    def key(self) -> tuple[Any, ...]:
        """Return a key that contains everything the result may depend on. Compare keys with `==`.

        Raises:
            NoKey: Part of the call cannot be represented in a key.
        """
        self.tensors, self.numbers, self.devices, self._memories, self._nodes = [], [], [], [], []
        key = (self.func, *self._parts(self.args), *self.kwargs, *self._parts(self.kwargs.values()))
        return (*key, self._pattern()) if self.numbers else key

    def _parts(self, values: Any) -> list[Any]:
        found: list[Any] = []
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                found.append(self._tensor(value))
            elif kind in _CONSTANTS:
                found += (kind, value)
            elif kind is float:
                found += (kind, value.hex())
            elif kind is list or kind is tuple:
                found += (kind, len(value), *self._parts(value))
            elif kind is torch.SymInt:
                found.append(self._number(value))
            elif kind is torch.device and (value.index is not None or value.type in ("cpu", "meta")):
                found += (kind, self._device(value))
            elif kind is complex:
                found += (kind, value.real.hex(), value.imag.hex())
            else:
                raise NoKey
        return found

    def _tensor(self, tensor: FakeTensor) -> tuple[Any, ...]:
        for at, other in enumerate(self.tensors):
            if other is tensor:
                return ("again", at)
        proxy = self.tracer.tensor_tracker.get(tensor)
        if (
            proxy is None
            or proxy.constant is not None
            or tensor.constant is not None
            or tensor.real_tensor is not None
            or tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.is_nested
            or tensor.fake_mode is not self.fake_mode
        ):
            raise NoKey
        storage = tensor.untyped_storage()
        numbers: Any = (*tensor.shape, None, *tensor.stride(), tensor.storage_offset(), storage.nbytes())
        if tensor._has_symbolic_sizes_strides or type(numbers[-1]) is not int:
            numbers = tuple([v if v is None or type(v) is int else self._number(v) for v in numbers])
        memory = storage._cdata
        shared = self._memories.index(memory) if memory in self._memories else -1
        self.tensors.append(tensor)
        self._memories.append(memory)
        self._nodes.append(proxy.proxy.node)
        return (
            numbers,
            shared,
            tensor.dtype,
            self._device(tensor.fake_device),
            tensor.requires_grad,
            tensor._is_view(),  # Not `is_leaf`, which raises on some views.
            tensor.is_conj(),
            tensor.is_neg(),
            tensor.is_inference(),
        )

    def _device(self, device: torch.device) -> Any:
        """Return a device; if it has equivalent devices, its kind and its index in `devices` instead."""
        kind = self._kinds.get(device)
        if kind is None:
            return device
        if device not in self.devices:
            self.devices.append(device)
        return kind, self.devices.index(device)

    def place_of(self, device: torch.device) -> torch.device | int | None:
        """Return a device's index in `devices`, or None. Return a device without equivalents unchanged."""
        if device not in self._kinds:
            return device
        return self.devices.index(device) if device in self.devices else None

    def _number(self, number: Any) -> tuple[Any, ...]:
        if not isinstance(number.node, SymNode):
            raise NoKey
        self.numbers.append(number)
        node = number.node
        # Like fake mode's cache, distinguish numbers by their expression before replacements.
        return ("symbolic", type(number), node._expr, node.pytype, node._hint)

    def _pattern(self) -> tuple[int, ...]:
        """Return a tuple that shows which of the symbolic numbers are identical."""
        first: dict[int, int] = {}
        return tuple([first.setdefault(id(number.node), at) for at, number in enumerate(self.numbers)])

    @catches_questions
    def is_compared(self, tensor: torch.Tensor) -> bool:
        """Return whether the contiguity of a tensor with symbolic sizes is already computed.

        If so, querying it leaves no node in the graph. This function queries an alias, which shares the
        cached result, because querying the tensor itself would compute the contiguity.
        """
        if not tensor._has_symbolic_sizes_strides:
            return False
        if _UNCOMPARED in tensor.__dict__:
            return True
        with _untraced(self.fake_mode):
            asked = alias_of(tensor)
            before = self._arithmetic.operations
            try:
                asked.is_contiguous()
            except GuardOnDataDependentSymNode:
                return False
            return self._arithmetic.operations == before

    def versions(self) -> list[int]:
        """Return the version counter of each tensor."""
        return [0 if tensor.is_inference() else tensor._version for tensor in self.tensors]

    def proxied(self, values: Any) -> Any:
        """Replace tensors and sizes among arguments by their nodes, in stock torch's order."""
        return tuple([self._proxied(value) for value in values])

    def _proxied(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            return next(
                node for tensor, node in zip(self.tensors, self._nodes, strict=True) if tensor is value
            )
        if kind is torch.SymInt:
            found = proxy_tensor.fetch_sym_proxy(self.tracer)(value)
            return found.node if isinstance(found, Proxy) else found
        if kind is list or kind is tuple:
            return kind([self._proxied(item) for item in value])
        return value
