"""A memo of what the operators of a trace return, so that a repeated one is not computed again.

All Python code of the model and of torch runs, every module and every call, and so does the dispatcher down
to the operator that becomes a node. Only what lies below that node is answered from memory: the fake kernel,
and what a composite operator decomposes into. Stock fake mode has such a memory too; this one starts
higher and costs less. Nodes, names, metadata, stack traces and guards are those of stock torch.

The key of a call has the operator, each tensor's sizes, strides, offset, dtype, device, memory and state of
autograd, which arguments are the same tensor or share memory, constants by type and value, symbolic sizes by
expression and identity, what is known of the symbols, and every setting of torch. A call is computed as in
stock torch if it is not in memory, depends on data, is no operator of `aten`, or has a kernel that is not
torch's own.

Seen on torch 2.13. Source: `torch/fx/experimental/proxy_tensor.py:proxy_call, track_tensor_tree,
_ModuleStackTracer.create_node`, `torch/_subclasses/fake_tensor.py:FakeTensorMode._cached_dispatch_impl`.
"""

from __future__ import annotations

import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import FrameSummary, StackSummary
from types import FrameType, FunctionType
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode as _Mode
from torch.fx import Node, Proxy
from torch.fx import traceback as fx_traceback
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import _ModuleStackTracer, _ProxyTensor, track_tensor_tree
from torch.fx.experimental.sym_node import SymNode

from .autograd_questions import TraceNeeded, autograd_questions
from .dispatcher_kernels import KernelOrigins
from .fake_tensors import FakeTensor, FakeTensorMode
from .new_fakes import NewFakes
from .node_stack_traces import Place, shown_places
from .operator_results import AnsweredOperator, NotRepeatable, RepeatedResults
from .patching import Patches, in_force
from .torch_settings import TorchSettings

__all__ = ["OperatorMemo", "TraceNeeded"]

_C: Any = torch._C
_CONSTANTS = frozenset(
    {int, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, type(...)}
)
_META = ["nn_module_stack", "stack_trace", "torch_fn", "val", "tensor_meta"]
# Fake mode does not remember these operators because of memory that they share, which the memo repeats.
_SHARING = frozenset({"unsafe view", "CompositeImplicitAutograd"})


class _Unknown(Exception):
    """The arguments of a call have no key."""


@dataclass(slots=True)
class _Entry:
    """What a call left.

    Args:
        results: How its results are made again.
        name: The name that it asked for its node.
        knowledge: What was known of the symbols.
    """

    results: RepeatedResults
    name: str
    knowledge: tuple[Any, ...]


class OperatorMemo:
    """Answers the operators of one trace that were called alike before.

    Attributes:
        answered: How many operators were answered from memory.
        computed: How many were computed.
    """

    def __init__(self) -> None:
        self.answered = 0
        self.computed = 0
        self._entries: dict[Any, _Entry] = {}
        self._refused: set[Any] = set()
        self._operators: dict[Any, bool] = {}
        self._settings = TorchSettings()
        self._origins = KernelOrigins()
        self._answers = AnsweredOperator()
        self._fakes = NewFakes()
        self._stacks = _NodeStacks()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Enter the context around a non-strict export, which may raise `TraceNeeded`."""
        stock = in_force(proxy_tensor, "proxy_call")

        def proxy_call(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
            fake_mode = self._fake_mode(mode, func, pre_dispatch)
            if fake_mode is None:
                return stock(mode, func, pre_dispatch, args, kwargs)
            return self._call(stock, mode, fake_mode, func, args, kwargs)

        replacements = {(proxy_tensor, "proxy_call"): proxy_call}
        with (
            Patches(replacements),
            self._stacks.marked(),
            self._origins.watched(self._forget),
            autograd_questions(lambda: self._answers.has_stood_in),
        ):
            yield

    def _forget(self) -> None:
        self._entries.clear()
        self._refused.clear()
        self._operators.clear()

    def _fake_mode(self, mode: Any, func: Any, pre_dispatch: bool) -> FakeTensorMode | None:
        """Return the fake mode that computes an operator, or None if the memo must not answer it."""
        known = self._operators.get(func)
        if known is None:
            known = self._operators[func] = _is_repeatable(func) and self._origins.are_of_torch(func)
        if (
            not known
            or not pre_dispatch
            or type(mode.tracer) is not _ModuleStackTracer
            or func in mode.decomposition_table
            or mode.decomp_layers
            or mode.emulate_precision_casts
            or _C._len_torch_dispatch_stack() != 1
            or _C._len_torch_function_stack()
            or _C._functorch.peek_interpreter_stack() is not None
            or torch.autograd.forward_ad._current_level >= 0
            or _C._autograd._top_saved_tensors_default_hooks(True) is not None
            or fx_traceback.has_preserved_node_meta()
        ):
            return None
        found = _C._get_dispatch_mode(_C._TorchDispatchModeKey.FAKE)
        # An observer of fake mode must see every operator.
        return found if type(found) is FakeTensorMode and "dispatch" not in vars(found) else None

    def _call(
        self,
        stock: Callable[..., Any],
        mode: Any,
        fake_mode: FakeTensorMode,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        call = _Call(mode.tracer, fake_mode, func, args, kwargs)
        try:
            key = (self._settings.number(), *call.key())
        except _Unknown:
            return stock(mode, func, True, args, kwargs)
        entry = self._entries.get(key)
        if entry is not None and entry.knowledge == call.knowledge():
            self.answered += 1
            return self._answer(entry, call)
        if key in self._refused:
            return stock(mode, func, True, args, kwargs)
        self.computed += 1
        return self._recorded(key, call, lambda: stock(mode, func, True, args, kwargs))

    def _recorded(self, key: Any, call: _Call, compute: Callable[[], Any]) -> Any:
        """Compute a call as stock torch does, and remember what it left if it can be repeated."""
        graph, before = call.tracer.graph, call.knowledge()
        last, misses, bypasses = graph._root._prev, _Mode.cache_misses, dict(_Mode.cache_bypasses)
        symbols, versions = dict(call.tracer.sympy_expr_tracker), call.versions()
        with self._answers.observed(call.fake_mode) as seen:
            result = compute()
        if call.knowledge() != before:
            return result  # It learned something, which an equal call would not learn again.
        if call.numbers and _Mode.cache_misses != misses:
            return result  # Computing a symbolic size for the first time may leave nodes.
        try:
            if _new_bypasses(bypasses) - _SHARING:
                raise NotRepeatable("fake mode does not remember it")
            if call.key() != key[1:]:
                raise NotRepeatable("it changes its arguments")
            node = _only_node(last, graph._root, call.func)
            meta = node.meta.get("tensor_meta")
            writes = [after - then for after, then in zip(call.versions(), versions, strict=True)]
            results = RepeatedResults.of(call, result, seen, meta, writes, self._fakes)
            _check_numbers(call.tracer, node, results.new_numbers(), symbols)
        except NotRepeatable:
            self._refused.add(key)
        else:
            name = graph._target_to_str(call.func.overloadpacket.__name__)
            self._entries[key] = _Entry(results, name, before)
        return result

    def _answer(self, entry: _Entry, call: _Call) -> Any:
        tracer, results = call.tracer, entry.results
        args = call.proxied(call.args)
        kwargs = dict(zip(call.kwargs, call.proxied(call.kwargs.values()), strict=True))
        node = self._stacks.node(tracer, call.func, args, kwargs, entry.name)
        thunkify, tracer.enable_thunkify = tracer.enable_thunkify, True
        try:
            result, value = self._answers.run(results, call)
        finally:
            tracer.enable_thunkify = thunkify
        proxy, meta = Proxy(node, tracer), node.meta
        if value is None:
            track_tensor_tree(result, proxy, constant=None, tracer=tracer)
            return result
        if results.tensor_meta is None or call.numbers:
            proxy_tensor.track_tensor(result, proxy, constant=None, tracer=tracer)
        else:
            tracer.tensor_tracker[result] = _ProxyTensor(proxy, None)
        meta["val"] = value
        sizes = {"shape": result.shape, "stride": result.stride()} if call.numbers else {}
        meta["tensor_meta"] = results.tensor_meta._replace(**sizes, qparams={})
        return result


class _Call:
    """The arguments of one call of an operator.

    Attributes:
        tensors: The tensors among them, each once.
        numbers: Symbolic numbers: those of the tensors, and those that are arguments.
    """

    def __init__(
        self, tracer: Any, fake_mode: FakeTensorMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.tracer = tracer
        self.fake_mode = fake_mode
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.tensors: list[FakeTensor] = []
        self.numbers: list[Any] = []
        self._memories: list[int] = []
        self._nodes: list[Node] = []

    def key(self) -> tuple[Any, ...]:
        """Return what is observable of the call; compare with `==`.

        Raises:
            _Unknown: Not all of it can be told.
        """
        self.tensors, self.numbers, self._memories, self._nodes = [], [], [], []
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
                found += (kind, value)
            elif kind is complex:
                found += (kind, value.real.hex(), value.imag.hex())
            else:
                raise _Unknown
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
            raise _Unknown
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
            tensor.fake_device,
            tensor.requires_grad,
            tensor._is_view(),  # Not `is_leaf`, which raises for some views.
            tensor.is_conj(),
            tensor.is_neg(),
            tensor.is_inference(),
        )

    def _number(self, number: Any) -> tuple[Any, ...]:
        if type(number.node) is not SymNode and not isinstance(number.node, SymNode):
            raise _Unknown
        self.numbers.append(number)
        return ("symbolic", type(number), number.node.expr)

    def _pattern(self) -> tuple[int, ...]:
        """Return which of the numbers are the same one."""
        first: dict[int, int] = {}
        return tuple([first.setdefault(id(number.node), at) for at, number in enumerate(self.numbers)])

    def versions(self) -> list[int]:
        """Return how often each tensor was written to."""
        return [0 if tensor.is_inference() else tensor._version for tensor in self.tensors]

    def knowledge(self) -> tuple[Any, ...]:
        """Return what changes whenever something new is known of the symbols."""
        environment = self.fake_mode.shape_env
        if environment is None:
            return ()
        return (
            environment._version_counter,
            environment._replacements_version_counter,
            len(environment.guards),
            len(environment.replacements),
            len(environment.var_to_range),
            environment.num_deferred_runtime_asserts,
            environment.unbacked_symint_counter,
            len(environment.pending_fresh_unbacked_symbols),
            len(environment.divisible),
            len(environment.axioms),
        )

    def proxied(self, values: Any) -> Any:
        """Return arguments of a node for arguments of the call, in the order of stock torch."""
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


class _NodeStacks:
    """Makes nodes of operators as the tracer does, with what all nodes of one place have in common."""

    def __init__(self) -> None:
        self._marks: list[tuple[FrameType, tuple[Place, ...]]] = []
        self._texts: dict[tuple[Place, ...], str] = {}
        self._modules: dict[tuple[Any, ...], OrderedDict[str, Any]] = {}

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Enter a context in which calls of modules are marked, so that stacks are read from there on."""
        stock = in_force(_ModuleStackTracer, "call_module")

        def call_module(tracer: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
            frame = sys._getframe()
            self._marks.append((frame, self._places(frame)))
            try:
                return stock(tracer, module, forward, args, kwargs)
            finally:
                self._marks.pop()

        with Patches({(_ModuleStackTracer, "call_module"): call_module}):
            yield

    def node(self, tracer: Any, func: OpOverload, args: Any, kwargs: Any, name: str) -> Node:
        """Return a new node with the metadata that follows from its place."""
        node: Node = tracer.graph.create_node("call_function", func, args, kwargs, name, None)
        scope, function = tracer.scope, tracer.torch_fn_metadata
        tracer.node_name_to_scope[node.name] = (scope.module_path, scope.module_type)
        meta = node.meta
        meta["nn_module_stack"] = self._module_stack(tracer).copy()
        if tracer.record_stack_traces and (text := self._text(tracer)):
            meta["stack_trace"] = text
        if function is not None:
            meta["torch_fn"] = (
                f"{function.__name__}_{tracer.torch_fn_counts[function]}",
                f"{function.__class__.__name__}.{function.__name__}",
            )
        return node

    def _module_stack(self, tracer: Any) -> OrderedDict[str, Any]:
        key = tuple(tracer.module_stack.items())
        found = self._modules.get(key)
        if found is None:
            found = self._modules[key] = OrderedDict(
                (path, (name, f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else kind))
                for path, (name, kind) in key
            )
        return found

    def _text(self, tracer: Any) -> str:
        places = self._places(sys._getframe(1))
        found = self._texts.get(places)
        if found is None:
            shown = StackSummary(FrameSummary(*place) for place in places)
            if shown:
                shown = tracer._filter_traceback_frames(shown)
            found = self._texts[places] = "".join(shown.format()).strip()
        return found

    def _places(self, frame: FrameType) -> tuple[Place, ...]:
        mark, outer = self._marks[-1] if self._marks else (None, ())
        inner = shown_places(frame, mark)
        return outer + inner if inner else outer


def _is_repeatable(func: Any) -> bool:
    """Return whether metadata of its arguments decides what an operator returns."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return False
    data_dependent = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
    # Indexing depends on data if a mask is the index, which fake mode counts as a bypass of its memory.
    is_index = func is torch.ops.aten.index.Tensor
    return is_index or not (data_dependent.intersection(func.tags) or func in _Mode.lift_fns)


def _new_bypasses(before: dict[str, int]) -> set[str]:
    """Return for which reasons fake mode computed an operator without its memory."""
    return {reason for reason, count in _Mode.cache_bypasses.items() if count != before.get(reason)}


def _only_node(last: Node, root: Node, func: Any) -> Node:
    """Return the node that a call made.

    There may be nodes of sizes before it, which the arguments need, and items of its result after it.
    """
    found: Node | None = None
    node = last._next
    while node is not root:
        if node.target is func and found is None:
            found = node
        elif found is not None and not (node.target is operator.getitem and node.args[0] is found):
            raise NotRepeatable("it leaves several nodes")
        node = node._next
    if found is None or [key for key in _META if key in found.meta] != list(found.meta):
        raise NotRepeatable("its node has other metadata")
    return found


def _check_numbers(tracer: Any, node: Node, new: dict[int, Any], before: dict[Any, Any]) -> None:
    """Raise unless the trace knows new symbolic numbers as sizes of the result, and no other ones."""
    for number in new.values():
        thunk = tracer.symnode_tracker.sym_node_dict.get(number.node)
        source = None if thunk is None else _source(thunk)
        if thunk is not None and source is not node and source not in node.users:
            raise NotRepeatable("it computes a size")
    for symbol, entry in tracer.sympy_expr_tracker.items():
        if before.get(symbol) is not entry and id(entry.value.node) not in new:
            raise NotRepeatable("it leaves a size")


def _source(thunk: Any) -> Node | None:
    """Return the node that a size is asked of; None if it is computed from other sizes."""
    if thunk.f is None:
        forced: Node = thunk.r.node
        return forced.args[0] if forced.args and isinstance(forced.args[0], Node) else None
    function = getattr(thunk.f, "func", None)
    if not isinstance(function, FunctionType) or "proxy" not in function.__code__.co_freevars:
        return None
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    asked: Node = cells["proxy"].cell_contents.node
    return asked
