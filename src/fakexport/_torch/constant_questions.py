"""What a traced `forward` asks about the values of constants: `bool(t)`, `int(t)`, `t.item()`, `t.tolist()`,
`torch.tensor([t])`, and how many elements of a mask are set: `x[mask]`, `mask.nonzero()`.

A trace sees fakes only, so it makes an unknown number of every such value, or fails. The graph so far says
what the tensor was computed from. Where that is constants alone, and operators that produce the same bits on
every device, the value can be computed on the CPU. Seen on torch 2.13.

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

from .constant_operators import NotExact, exact_result
from .fake_tensors import FakeTensor, storage_identity
from .operator_effects import effects_of
from .patching import Patches, in_force
from .real_execution import real_execution

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
    """The graph of a trace, up to the present moment.

    Args:
        tracer: Of `make_fx`.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def written(self) -> set[int]:
        """Return the memories that an operator may have written into, as `storage_identity` tells them."""
        return {
            memory
            for node in self._tracer.graph.nodes
            if node.op == "call_function"
            for written in _written(node)
            for alias in _aliased(written)
            if (memory := self.memory(alias)) is not None
        }

    def memory(self, node: Node) -> int | None:
        """Return the memory of a tensor in the graph."""
        value = (
            getattr(self._tracer.root, str(node.target)) if node.op == "get_attr" else node.meta.get("val")
        )
        if not isinstance(value, torch.Tensor):
            return None
        while torch._C._functorch.is_functorch_wrapped_tensor(value):  # Of `vmap`: it looks at another one.
            value = torch._C._functorch.get_unwrapped(value)
        return storage_identity(value)

    def node_of(self, tensor: torch.Tensor) -> Node | None:
        """Return the node that stands for a tensor."""
        slot = proxy_tensor.get_proxy_slot(tensor, self._tracer, None)
        return None if slot is None else slot.proxy.node

    def literal(self, node: Node) -> torch.Tensor | None:
        """Return the tensor that a `get_attr` node reads: a fake, or the real one of `torch.tensor(...)`."""
        return getattr(self._tracer.root, str(node.target), None) if node.op == "get_attr" else None

    def number(
        self, tensor: torch.Tensor, leaf: Callable[[Node], torch.Tensor], *, reading: Reading = "value"
    ) -> bool | int | float:
        """Return the value of a tensor of one element, or a number that all elements of a tensor tell.

        Args:
            tensor: As the trace has it.
            leaf: Gives the value of an input of the graph; raises `NotExact` where it is not known.
            reading: `count` counts the elements that are not zero, `sum` adds them.
        Raises:
            NotExact: it is not computed from constants alone, or not with the same bits on every device.
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
    """Return a context in which `answer` is asked for a fake tensor's value before a trace makes one up.

    Args:
        answer: Gets the graph so far, the tensor and the read; returns a number, or None to go on as stock.
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
        if count is not None and count >= 2:  # torch replaces no size by 0 or 1.
            selected = result if isinstance(result, torch.Tensor) else result[0]
            torch._check(selected.shape[0] == count)
        return result

    return Patches({(proxy_tensor, "proxy_call"): proxy_call})


class ListedConstants(TorchFunctionMode):
    """Puts numbers in the place of constants in a list for `torch.tensor` and `torch.as_tensor` in a trace.

    torch reads them past every other mode. torch.export looks at these functions by identity, so they are not
    replaced.

    Args:
        answer: As for `constant_questions`.
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
    """Return the tensor whose elements tell the first size of what an operator returns, and how."""
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
    """Return data for `torch.tensor` with numbers instead of constants, which torch reads past every mode.
    A tensor's dtype has a say in that of the result, so only those of the kinds of Python are replaced.
    """
    if isinstance(data, (list, tuple)):
        return [_with_numbers(each, answer) for each in data]
    if type(data) is not FakeTensor or data.dim() or data.dtype not in (torch.int64, torch.bool):
        return data
    number = answer(data)
    return data if number is None else number


def _is_nested() -> bool:
    """Return whether the graph may hide writes: in a body of `torch.cond` or the like, and under `vmap`."""
    current = proxy_tensor._CURRENT_MAKE_FX_TRACER
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return is_transformed or current is None or current.is_hop_subgraph_tracer()


def _written(node: Node) -> Iterator[Node]:
    """Yield the tensors that a node may write into; whatever is not an operator may write into each."""
    operator: Any = node.target
    if not isinstance(operator, OpOverload):
        if getattr(operator, "__name__", "") != "getitem":
            yield from node.all_input_nodes
        return
    if operator._schema.name in _UNCHANGING_WRITES:
        return
    for index, name in effects_of(operator).writes:
        argument = node.args[index] if index < len(node.args) else node.kwargs.get(name)
        yield from (leaf for leaf in tree_iter(argument) if isinstance(leaf, Node))


def _aliased(node: Node) -> Iterator[Node]:
    """Yield a tensor and its bases; torch keeps no base for the views of an attribute."""
    source: Any = node
    while isinstance(source, Node):
        yield source
        place = effects_of(source.target).aliased if isinstance(source.target, OpOverload) else (0, "")
        if source.op != "call_function" or place is None:
            return
        index, name = place
        source = source.args[index] if index < len(source.args) else source.kwargs.get(name)


def _fixed_size(node: Node) -> int | None:
    """Return a size that may vary, and of which a condition of the model has left one value."""
    size = node.meta.get("val")
    return size.node.maybe_as_int() if isinstance(size, torch.SymInt) else None


def _ancestors(node: Node) -> Iterator[Node]:
    """Yield all that a node was computed from, each before its users, itself last."""
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
