"""Compute the values of constants that a traced `forward` reads.

Such reads are `bool(t)`, `int(t)`, `t.item()`, `t.tolist()` and `torch.tensor([t])`. `x[mask]` and
`mask.nonzero()` read how many elements of a mask are True.

A trace contains only fake tensors, so each value that is read becomes an unbacked symbol, or the trace fails.
The graph so far shows how the tensor was computed. If it was computed from constants only, with operators
that return identical bits on every device, this module computes the value on the CPU. Seen on torch 2.13.

Source: `torch/fx/experimental/proxy_tensor.py:proxy_call`,
`torch/csrc/utils/tensor_new.cpp:internal_new_from_data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, cast

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter

from fakexport._torch.emulation.fake_tensors import FakeTensor, storage_identity
from fakexport._torch.operators.constant_operators import NotExact, exact_result
from fakexport._torch.operators.operator_effects import argument_at, effects_of
from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.patching import Patches, in_force
from fakexport._torch.tracing.vmap_steps import without_levels

_QUESTIONS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero"})
Reading = Literal["value", "count", "sum"]
_READINGS: Mapping[Reading, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {"value": lambda tensor: tensor, "count": torch.count_nonzero, "sum": torch.sum}
)
_NONZERO = frozenset({"aten::nonzero", "aten::nonzero_numpy"})
_ASKED = _QUESTIONS | _NONZERO | {"aten::index", "aten::repeat_interleave"}
_UNCHANGING_WRITES = frozenset({"aten::detach_"})
_MOST_NODES = 1_000


class ConstantGraph:
    """The graph that a trace has recorded so far."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def written(self) -> set[int]:
        """Return the `storage_identity` of each storage that an operator may have mutated."""
        return {
            memory
            for node in self._tracer.graph.nodes
            if node.op == "call_function"
            for written in _written(node)
            for alias in _aliased(written)
            if (memory := self.memory(alias)) is not None
        }

    def memory(self, node: Node) -> int | None:
        """Return the `storage_identity` of a node's tensor, or None if its value is not a tensor."""
        value = (
            getattr(self._tracer.root, str(node.target)) if node.op == "get_attr" else node.meta.get("val")
        )
        return storage_identity(without_levels(value)) if isinstance(value, torch.Tensor) else None

    def node_of(self, tensor: torch.Tensor) -> Node | None:
        """Return the node that computed a tensor, or None."""
        slot = proxy_tensor.get_proxy_slot(tensor, self._tracer, None)
        return None if slot is None else slot.proxy.node

    def literal(self, node: Node) -> torch.Tensor | None:
        """Return the tensor that a `get_attr` node reads. It is real if `torch.tensor(...)` created it."""
        return getattr(self._tracer.root, str(node.target), None) if node.op == "get_attr" else None

    def number(
        self, tensor: torch.Tensor, leaf: Callable[[Node], torch.Tensor], *, reading: Reading = "value"
    ) -> bool | int | float:
        """Return the value of a one-element tensor, or the count or sum of a tensor's elements.

        Args:
            leaf: Returns the value of a graph input, or raises `NotExact` if the value is unknown.
            reading: `value` reads the only element, `count` counts nonzero elements, `sum` adds all elements.
        Raises:
            NotExact: The value depends on more than constants, or may have different bits on some device.
        """
        node = self.node_of(tensor)
        if node is None:
            raise NotExact(f"a tensor of shape {tuple(tensor.shape)} that is not in the graph")
        order = list(_ancestors(node))
        if stale := self.written() & {memory for n in order if (memory := self.memory(n)) is not None}:
            raise NotExact(f"{len(stale)} of its storages were written to")
        values: dict[Node, Any] = {}
        with real_execution():
            for step in order:
                is_leaf = step.op in ("placeholder", "get_attr")
                size = _fixed_size(step)
                values[step] = (
                    size if size is not None else leaf(step) if is_leaf else exact_result(step, values)
                )
            number: bool | int | float = _READINGS[reading](values[node]).item()
        return number


def constant_questions(answer: Callable[[ConstantGraph, FakeTensor, Reading], Any]) -> Patches:
    """Return a context that calls `answer` when a fake tensor's value is read.

    Args:
        answer: Called with the graph so far, the tensor and the kind of read. Returns the number that was
            read, or None. If it is None, torch creates an unbacked symbol or raises an error, as usual.
    """
    stock = in_force(proxy_tensor, "proxy_call")

    def proxy_call(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
        name = func._schema.name if isinstance(func, OpOverload) else ""
        if name not in _ASKED or _is_nested():
            return stock(mode, func, pre_dispatch, args, kwargs)
        if name in _QUESTIONS and type(args[0]) is FakeTensor and args[0].numel() == 1:
            number = answer(ConstantGraph(mode.tracer), args[0], "value")
            if number is not None:
                return bool(number) if name == "aten::is_nonzero" else number
        told_by, reading = _told_by(func, args)
        count = None if told_by is None else answer(ConstantGraph(mode.tracer), told_by, reading)
        result = stock(mode, func, pre_dispatch, args, kwargs)
        if count is not None and count >= 2:  # torch does not specialize sizes to 0 or 1.
            selected = result if isinstance(result, torch.Tensor) else result[0]
            torch._check(selected.shape[0] == count)
        return result

    return Patches({(proxy_tensor, "proxy_call"): proxy_call})


class ListedConstants(TorchFunctionMode):
    """In a trace, replace constants with numbers in lists passed to `torch.tensor` and `torch.as_tensor`.

    torch reads the elements of these lists below all dispatch modes. The functions cannot be patched, because
    torch.export compares them by identity, so a function mode is used.

    Args:
        answer: The same function as for `constant_questions`.
    """

    def __init__(self, answer: Callable[[ConstantGraph, FakeTensor, Reading], Any]) -> None:
        super().__init__()
        self._answer = answer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor) and args and isinstance(args[0], (list, tuple)):
            mode = proxy_tensor.get_proxy_mode()
            if mode is not None and not _is_nested():
                graph = ConstantGraph(mode.tracer)
                args = (_with_numbers(args[0], lambda each: self._answer(graph, each, "value")), *args[1:])
        return func(*args, **(kwargs or {}))


def _told_by(func: OpOverload, args: Any) -> tuple[FakeTensor | None, Reading]:
    """Return the tensor that determines the size of a result's first dimension, and how to read the size.

    The reading is `count` or `sum`. The tensor is None if there is no such tensor.
    """
    name, tensor, reading = func._schema.name, None, "count"
    if name in _NONZERO or func is torch.ops.aten.repeat_interleave.Tensor:
        tensor = args[0]
        reading = "count" if name in _NONZERO else "sum"
    elif name == "aten::index" and len(args[1]) == 1 and args[1][0].dtype is torch.bool:
        tensor = args[1][0]
    elif func is torch.ops.aten.repeat_interleave.self_Tensor and args[0].dim() == 1:
        tensor, reading = args[1], "sum"
    return (tensor if type(tensor) is FakeTensor else None), cast(Reading, reading)


def _with_numbers(data: Any, answer: Callable[[FakeTensor], Any]) -> Any:
    """Return the argument of `torch.tensor` with constant tensors replaced by numbers.

    The dtype of a tensor affects the dtype of the result. Therefore, only tensors of int64 and bool are
    replaced, because `torch.tensor` uses these dtypes for Python numbers.
    """
    if isinstance(data, (list, tuple)):
        return [_with_numbers(each, answer) for each in data]
    if type(data) is not FakeTensor or data.dim() or data.dtype not in (torch.int64, torch.bool):
        return data
    number = answer(data)
    return data if number is None else number


def _is_nested() -> bool:
    """Return whether the graph may not show all mutations: in a body of `torch.cond`, or under `vmap`."""
    current = proxy_tensor._CURRENT_MAKE_FX_TRACER
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return is_transformed or current is None or current.is_hop_subgraph_tracer()


def _written(node: Node) -> Iterator[Node]:
    """Yield the inputs that a node may mutate. If its target is not an operator, yield all inputs."""
    operator: Any = node.target
    if not isinstance(operator, OpOverload):
        if getattr(operator, "__name__", "") != "getitem":
            yield from node.all_input_nodes
        return
    if operator._schema.name in _UNCHANGING_WRITES:
        return
    for place in effects_of(operator).writes:
        argument = argument_at(place, node.args, node.kwargs)
        yield from (leaf for leaf in tree_iter(argument) if isinstance(leaf, Node))


def _aliased(node: Node) -> Iterator[Node]:
    """Yield a node and the nodes that it is a view of.

    The graph is searched, because torch records no base for a view of an attribute.
    """
    source: Any = node
    while isinstance(source, Node):
        yield source
        place = effects_of(source.target).aliased if isinstance(source.target, OpOverload) else (0, "")
        if source.op != "call_function" or place is None:
            return
        source = argument_at(place, source.args, source.kwargs)


def _fixed_size(node: Node) -> int | None:
    """Return the value of a symbolic size if a guard has specialized it, otherwise None."""
    size = node.meta.get("val")
    return size.node.maybe_as_int() if isinstance(size, torch.SymInt) else None


def _ancestors(node: Node) -> Iterator[Node]:
    """Yield all nodes that a node was computed from, in graph order, and then the node itself."""
    found: set[Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            pending.extend(() if _fixed_size(current) is not None else current.all_input_nodes)
        if len(found) > _MOST_NODES:
            raise NotExact(f"it takes more than {_MOST_NODES:,} operators")
    yield from (n for n in node.graph.nodes if n in found)
