"""A memo of what the operators of a trace return, so that a repeated one is not computed again.

All Python code of the model and of torch runs, every module and every call, and so does the dispatcher down
to the operator that becomes a node. Only what runs below that node is answered from memory: the fake kernel,
and what a composite operator decomposes into. Stock fake mode has such a memory too; this one starts
higher and costs less. Nodes, names, metadata, stack traces and guards are those of stock torch.

The key of a call has the operator, each tensor's sizes, strides, offset, dtype, kind of device, memory and
state of autograd, which arguments are the same tensor or share memory, constants by type and value, symbolic
sizes by expression and identity, what is known of the symbols, and every setting of torch. A call is computed
as in stock torch if it is not in memory, depends on data, is not an operator of `aten`, or has a kernel that
is not torch's own.

Seen on torch 2.13. Source: `torch/fx/experimental/proxy_tensor.py:proxy_call, track_tensor_tree,
_ModuleStackTracer.create_node`, `torch/_subclasses/fake_tensor.py:FakeTensorMode._cached_dispatch_impl`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode as _Mode
from torch.fx import Proxy
from torch.fx import traceback as fx_traceback
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import _ModuleStackTracer, _ProxyTensor, track_tensor_tree

from .autograd_questions import TraceNeeded, autograd_questions
from .dispatcher_kernels import KernelOrigins
from .fake_tensors import FakeTensorMode
from .new_fakes import NewFakes
from .operator_call import NoKey, OperatorCall
from .operator_nodes import OperatorNodes, check_numbers, only_node
from .operator_results import AnsweredOperator, NotRepeatable, RepeatedResults
from .patching import Patches, in_force
from .quick_handlers import quick_handlers
from .symbolic_arithmetic import SymbolicArithmetic
from .torch_settings import TorchSettings

__all__ = ["OperatorMemo", "TraceNeeded"]

_C: Any = torch._C
# Fake mode does not remember these operators because of memory that they share, which the memo repeats, or
# because they return a SymInt besides tensors, such as attention by cuDNN.
_REPEATED = frozenset({"unsafe view", "CompositeImplicitAutograd", "non-FakeTensor output"})


@dataclass(slots=True)
class _Entry:
    """What a call left.

    Args:
        results: How its results are made again.
        name: The name that it asked for its node.
        knowledge: What was known of the symbols.
        devices: Those for which the operator was computed. Fake mode's own memory tells devices apart, and
            computing sizes for the first time may leave nodes, so with symbols each device computes once.
    """

    results: RepeatedResults
    name: str
    knowledge: tuple[Any, ...]
    devices: set[tuple[torch.device, ...]]


class OperatorMemo:
    """Answers the operators of one trace that were called alike before.

    Args:
        kinds: Devices that differ from others of the same kind by their index alone, such as eight GPUs of
            one model. What ran on one of them answers for the others. Other devices count as different.
    Attributes:
        answered: How many operators were answered from memory.
        computed: How many were computed.
    """

    def __init__(self, kinds: Mapping[torch.device, Hashable] | None = None) -> None:
        self._kinds = kinds or {}
        self.answered = 0
        self.computed = 0
        self._entries: dict[Any, _Entry] = {}
        self._refused: set[Any] = set()
        self._operators: dict[Any, tuple[bool, Any]] = {}
        self._settings = TorchSettings()
        self._origins = KernelOrigins()
        self._answers = AnsweredOperator()
        self._fakes = NewFakes()
        self._arithmetic = SymbolicArithmetic()
        self._nodes = OperatorNodes()

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
            quick_handlers(),
            self._nodes.marked(),
            self._arithmetic.remembered(),
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
        kernels = getattr(func, "py_kernels", None)
        known = self._operators.get(func)
        if known is None or known[1] != kernels:
            is_known = _is_repeatable(func) and self._origins.are_of_torch(func)
            known = self._operators[func] = (is_known, kernels and kernels.copy())
        if (
            not known[0]
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
        call = OperatorCall(mode.tracer, fake_mode, self._arithmetic, self._kinds, func, args, kwargs)
        try:
            key = (self._settings.number(), *call.key())
        except NoKey:
            return stock(mode, func, True, args, kwargs)
        entry = self._entries.get(key)
        if entry is not None and entry.knowledge == call.knowledge():
            if not call.numbers or (devices := tuple(call.devices)) in entry.devices:
                self.answered += 1
                return self._answer(entry, call)
            entry.devices.add(devices)
            self.computed += 1
            return stock(mode, func, True, args, kwargs)
        if key in self._refused:
            return stock(mode, func, True, args, kwargs)
        self.computed += 1
        return self._recorded(key, call, lambda: stock(mode, func, True, args, kwargs))

    def _recorded(self, key: Any, call: OperatorCall, compute: Callable[[], Any]) -> Any:
        """Compute a call as stock torch does, and remember what it left if it can be repeated."""
        graph, before = call.tracer.graph, call.knowledge()
        last, misses, bypasses = graph._root._prev, _Mode.cache_misses, dict(_Mode.cache_bypasses)
        symbols, versions = dict(call.tracer.sympy_expr_tracker), call.versions()
        compared = list(map(call.is_compared, call.tensors))
        with self._answers.observed(call.fake_mode) as seen:
            result = compute()
        if call.knowledge() != before:
            return result  # It learned something, which an equal call would not learn again.
        if call.numbers and _Mode.cache_misses != misses:
            return result  # Computing a symbolic size for the first time may leave nodes.
        try:
            if _new_bypasses(bypasses) - _REPEATED:
                raise NotRepeatable("fake mode does not remember it")
            if call.key() != key[1:]:
                raise NotRepeatable("it changes its arguments")
            node = only_node(last, graph._root, call.func)
            meta = node.meta.get("tensor_meta")
            writes = [after - then for after, then in zip(call.versions(), versions, strict=True)]
            learned = [
                at for at, tensor in enumerate(call.tensors) if not compared[at] and call.is_compared(tensor)
            ]
            results = RepeatedResults.of(call, result, seen, meta, writes, learned, self._fakes)
            check_numbers(call.tracer, node, results.new_numbers(), symbols)
        except NotRepeatable:
            self._refused.add(key)
        else:
            name = graph._target_to_str(call.func.overloadpacket.__name__)
            self._entries[key] = _Entry(results, name, before, {tuple(call.devices)})
        return result

    def _answer(self, entry: _Entry, call: OperatorCall) -> Any:
        tracer, results = call.tracer, entry.results
        args = call.proxied(call.args)
        kwargs = dict(zip(call.kwargs, call.proxied(call.kwargs.values()), strict=True))
        node = self._nodes.node(tracer, call.func, args, kwargs, entry.name)
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
