"""A memo of operator results in a trace, so that repeated calls are not computed again.

The Python code of the model and of torch is executed for every module and call, and so is the dispatcher,
down to the operator that becomes a node. Only what runs below that operator is replayed: the fake kernel, and
the decomposition of composite operators. Stock fake mode also has a cache; this memo acts at a higher level
and is cheaper. Nodes, names, metadata, stack traces and guards are identical to stock torch.

The key of a call contains the operator; each tensor's sizes, strides, offset, dtype, kind of device,
storage and autograd state; which arguments are the same tensor or share storage; constants by type and
value; symbolic sizes by expression and identity; the state of the shape environment; and every torch
setting. A call is computed by stock torch if it is not in the memo, is data-dependent, is not an ATen
operator, or has a kernel that is not torch's own.

Seen on torch 2.13. Source: `torch/fx/experimental/proxy_tensor.py:proxy_call, track_tensor_tree,
_ModuleStackTracer.create_node`, `torch/_subclasses/fake_tensor.py:FakeTensorMode._cached_dispatch_impl`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode as _Mode
from torch.autograd import graph
from torch.fx import Proxy
from torch.fx import traceback as fx_traceback
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import _ModuleStackTracer, _ProxyTensor, track_tensor_tree

from fakexport._torch.emulation.fake_tensors import FakeTensor, FakeTensorMode
from fakexport._torch.kernels.kernel_mode import alias_of
from fakexport._torch.operators.dispatcher_kernels import KernelOrigins
from fakexport._torch.patching import Patches, in_force
from fakexport._torch.tracing.torch_settings import TorchSettings

from .new_fakes import NewFakes
from .operator_call import NoKey, OperatorCall, compare
from .operator_nodes import OperatorNodes, check_numbers, only_node, track
from .operator_results import AnsweredOperator, NotRepeatable, RepeatedResults
from .quick_handlers import quick_handlers
from .symbolic_arithmetic import SymbolicArithmetic

__all__ = ["OperatorMemo", "TraceNeeded"]

_C: Any = torch._C
# Fake mode does not cache these operators because of shared storage, which the memo reproduces, or because
# they return a SymInt in addition to tensors, as cuDNN attention does.
_REPEATED = frozenset({"unsafe view", "CompositeImplicitAutograd", "non-FakeTensor output"})
# Python functions that query contiguity before any operator is called.
_ASKING = frozenset({torch.Tensor.is_contiguous, torch.Tensor.contiguous, alias_of})


@dataclass(slots=True)
class _Entry:
    """The recorded outcome of a call.

    Args:
        results: Reproduces the results.
        name: The requested name of the node.
        knowledge: State of the shape environment.
        compared: For each tensor argument, whether its contiguity was computed before the call.
        devices: Devices on which the operator was called. If sizes are symbolic, the first call on each
            device is recorded separately, because fake mode's cache distinguishes devices, and computing
            sizes may add nodes.
    """

    results: RepeatedResults
    name: str
    knowledge: tuple[int, ...]
    compared: list[bool]
    devices: set[tuple[torch.device, ...]]


class OperatorMemo:
    """Reuse the results of earlier, equivalent operator calls in one trace.

    Args:
        kinds: Device -> kind. Devices of one kind differ only by their index, such as eight identical GPUs.
            A result from one of them is reused for the others. Omitted devices are all distinct.
    Attributes:
        answered: Number of operator calls whose result was reused.
        computed: Number of operator calls that stock torch computed.
    """

    def __init__(self, kinds: Mapping[torch.device, Hashable] | None = None) -> None:
        self._kinds = kinds or {}
        self.answered = 0
        self.computed = 0
        self._entries: dict[Any, _Entry] = {}
        self._first: dict[Any, _Entry] = {}  # Calls with symbols that missed fake mode's cache.
        self._refused: set[Any] = set()
        self._operators: dict[Any, tuple[bool, Any]] = {}
        self._settings = TorchSettings()
        self._origins = KernelOrigins()
        self._answers = AnsweredOperator()
        self._fakes = NewFakes()
        self._arithmetic = SymbolicArithmetic()
        self._nodes = OperatorNodes()
        self._knowledge = ShapeKnowledge()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Enter the context around a non-strict export, which may raise `TraceNeeded`."""
        stock = in_force(proxy_tensor, "proxy_call")
        stock_function = in_force(_NonStrictTorchFunctionHandler, "__torch_function__")

        def compute(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
            compare((*args, *kwargs.values()))
            return stock(mode, func, pre_dispatch, args, kwargs)

        def torch_function(handler: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not torch.compiler.is_dynamo_compiling() and func in _ASKING:
                compare(args)
            return stock_function(handler, func, types, args, kwargs)

        def proxy_call(mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
            fake_mode = self._fake_mode(mode, func, pre_dispatch)
            if fake_mode is None:
                return compute(mode, func, pre_dispatch, args, kwargs)
            return self._call(compute, mode, fake_mode, func, args, kwargs)

        replacements = {
            (proxy_tensor, "proxy_call"): proxy_call,
            (_NonStrictTorchFunctionHandler, "__torch_function__"): torch_function,
        }
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
        self._first.clear()
        self._refused.clear()
        self._operators.clear()

    def _fake_mode(self, mode: Any, func: Any, pre_dispatch: bool) -> FakeTensorMode | None:
        """Return the fake mode that computes an operator, or None if its result must not be reused."""
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
        # An observer of the fake mode must see every operator.
        return found if type(found) is FakeTensorMode and "dispatch" not in vars(found) else None

    def _call(
        self,
        compute: Callable[..., Any],
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
            return compute(mode, func, True, args, kwargs)
        entry = self._entries.get(key)
        if entry is not None and entry.knowledge == (knowledge := self._known(call)):
            if not call.numbers or (devices := tuple(call.devices)) in entry.devices:
                self.answered += 1
                return self._answer(entry, call)
            entry.devices.add(devices)
            first = self._first.get(key)
            if first is not None and first.knowledge == knowledge and self._is_like(first, call):
                self.answered += 1
                return self._answer(first, call)
        if key in self._refused:
            return compute(mode, func, True, args, kwargs)
        self.computed += 1
        return self._recorded(key, call, lambda: compute(mode, func, True, args, kwargs))

    def _known(self, call: OperatorCall) -> tuple[int, ...]:
        return self._knowledge.of(call.fake_mode.shape_env)

    @staticmethod
    def _is_like(first: _Entry, call: OperatorCall) -> bool:
        """Return whether contiguity is computed for all tensors for which it was before the first call."""
        return all(
            call.is_compared(tensor)
            for tensor, is_compared in zip(call.tensors, first.compared, strict=True)
            if is_compared
        )

    def _recorded(self, key: Any, call: OperatorCall, compute: Callable[[], Any]) -> Any:
        """Compute a call with stock torch, and record the outcome if it can be repeated."""
        graph, before = call.tracer.graph, self._known(call)
        last, misses, bypasses = graph._root._prev, _Mode.cache_misses, dict(_Mode.cache_bypasses)
        symbols, versions = dict(call.tracer.sympy_expr_tracker), call.versions()
        compared = list(map(call.is_compared, call.tensors))
        with self._answers.observed(call.fake_mode) as seen:
            result = compute()
        if self._known(call) != before:
            return result  # It changed the shape environment, which an equal call would not do again.
        # Only the first computation of a symbolic size may leave nodes.
        is_first = bool(call.numbers) and _Mode.cache_misses != misses
        try:
            if _new_bypasses(bypasses) - _REPEATED:
                raise NotRepeatable("fake mode does not cache it")
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
            if not is_first:
                self._refused.add(key)
        else:
            if is_first and not results.has_one_form():
                return result
            name = graph._target_to_str(call.func.overloadpacket.__name__)
            known = self._first if is_first else self._entries
            old = known.get(key)
            devices = old.devices if old is not None and old.knowledge == before else set()
            known[key] = _Entry(results, name, before, compared, {*devices, tuple(call.devices)})
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
            track(tracer, result, proxy)
        else:
            tracer.tensor_tracker[result] = _ProxyTensor(proxy, None)
        meta["val"] = value
        sizes = {"shape": result.shape, "stride": result.stride()} if call.numbers else {}
        meta["tensor_meta"] = results.tensor_meta._replace(**sizes, qparams={})
        return result


class ShapeKnowledge:
    """What the shape environment of one trace knows about its symbols, as a value to compare.

    An environment may add a guard that it already has. For sizes that torch cannot simplify, such as those of
    linear attention in chunks, it does so in every layer. A repeated guard adds no knowledge, so this class
    counts only distinct guards.
    """

    def __init__(self) -> None:
        self._environment: Any = None
        self._read = 0
        self._guards: set[tuple[Any, bool]] = set()

    def of(self, environment: Any) -> tuple[int, ...]:
        """Return counters that change whenever the shape environment learns something new about a symbol."""
        if environment is None:
            return ()
        return (
            environment._version_counter,
            environment._replacements_version_counter,
            self._different_guards(environment),
            len(environment.replacements),
            len(environment.var_to_range),
            environment.num_deferred_runtime_asserts,
            environment.unbacked_symint_counter,
            len(environment.pending_fresh_unbacked_symbols),
            len(environment.divisible),
            len(environment.axioms),
        )

    def _different_guards(self, environment: Any) -> int:
        guards = environment.guards
        if environment is not self._environment or len(guards) < self._read:
            self._environment, self._read = environment, 0
            self._guards.clear()
        if len(guards) > self._read:
            self._guards.update((guard.expr, guard.size_oblivious) for guard in guards[self._read :])
            self._read = len(guards)
        return len(self._guards)


def _is_repeatable(func: Any) -> bool:
    """Return whether an operator's result depends only on the metadata of its arguments."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return False
    data_dependent = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
    # Indexing is data-dependent only with a mask, which fake mode counts as a cache bypass.
    is_index = func is torch.ops.aten.index.Tensor
    return is_index or not (data_dependent.intersection(func.tags) or func in _Mode.lift_fns)


def _new_bypasses(before: dict[str, int]) -> set[str]:
    """Return for which reasons fake mode bypassed its cache since `before`."""
    return {reason for reason, count in _Mode.cache_bypasses.items() if count != before.get(reason)}


class TraceNeeded(BaseException):
    """The model inspects how a tensor was computed, which the operator memo does not know.

    It does not derive from `Exception`, so that no `except Exception` of the model catches it.
    """


def autograd_questions(has_stood_in: Callable[[], bool]) -> Patches:
    """Return a context in which an autograd query raises `TraceNeeded` if its result could be wrong."""
    stock: Any = vars(torch._C.TensorBase)["grad_fn"]

    def grad_fn(tensor: torch.Tensor) -> Any:
        found = stock.__get__(tensor)
        if found is not None and has_stood_in():
            raise TraceNeeded("the gradient function of a tensor")
        return found

    def backward(stock_backward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if has_stood_in():
                raise TraceNeeded("gradients in forward")
            return stock_backward(*args, **kwargs)

        return run

    owners = (torch.autograd, graph)
    name = "_engine_run_backward"
    return Patches(
        {
            (FakeTensor, "grad_fn"): property(grad_fn),
            **{(owner, name): backward(in_force(owner, name)) for owner in owners if hasattr(owner, name)},
        }
    )
