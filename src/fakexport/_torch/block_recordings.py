"""What one call of a module leaves in a trace, recorded while it is traced. Seen on torch 2.13.

Source: `torch/fx/experimental/proxy_tensor.py:proxy_call, track_tensor, _ModuleStackTracer.create_node`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import Node
from torch.fx.experimental import proxy_tensor
from torch.utils._pytree import tree_iter

from .fake_tensors import FakeTensor, FakeTensorMode
from .observed_tensors import SymbolicNumber, proxy_of, source_of, thunk_of, why_not_observable
from .patching import Patches, in_force

# `eager_input_vals` are values of the arguments, on operators that need the strides of these: collectives.
_META = frozenset({"nn_module_stack", "torch_fn", "val", "tensor_meta", "stack_trace", "eager_input_vals"})
LITERALS = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    slice,
    type(...),
)


class NotReplayable(Exception):
    """Why the nodes of a call cannot be made once more."""


class NeverReplayable(NotReplayable):
    """Why the nodes of no call that runs the same code can be made once more."""


@dataclass
class MadeNode:
    node: Node
    name: str | None
    function: Any
    count: int


def entry_state(tracer: Any, module: Any, inner: Sequence[str]) -> tuple[Any, ...]:
    """Return what of a tracer's state shows in the nodes of a call; compare with `==`.

    Args:
        inner: Names of the modules inside of the module.
    """
    path, calls = tracer.submodule_paths[module], tracer.num_calls
    return (
        tracer.enable_thunkify,
        tracer.record_stack_traces,
        tuple((name, calls[f"{path}.{name}"]) for name in inner if f"{path}.{name}" in calls),
        torch.fx.traceback.has_preserved_node_meta(),
    )


class Recording:
    """Records one call of a module while it is traced.

    Args:
        tracer: The tracer of the export.
        module: The module that is called; its scope is open.
        tensors: What the call can reach, in an order that the next call has as well.
        numbers: Symbolic numbers, likewise.
    """

    def __init__(
        self, tracer: Any, module: Any, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]
    ) -> None:
        self.faults: list[str] = []
        self.faults_of_all: list[str] = []
        self.tracer = tracer
        self.path = tracer.submodule_paths[module]
        self.tensors = tuple(tensors)
        self.numbers = tuple(numbers)
        self.made: list[MadeNode] = []

    @property
    def is_settled(self) -> bool:
        """Whether fake mode had seen every operator of the call before, so that an equal call runs alike.

        The kernel of an operator that it sees for the first time computes sizes, which leaves nodes.
        """
        return len(FakeTensorMode.cache) == self._seen and FakeTensorMode.cache_misses == self._misses

    @contextmanager
    def running(self) -> Iterator[None]:
        """Enter the context around the call."""
        tracer = self.tracer
        self._last = tracer.graph._root._prev
        self._seen = len(FakeTensorMode.cache)
        self._misses = FakeTensorMode.cache_misses
        self.outer = len(tracer.module_stack)
        self.counts = dict(tracer.torch_fn_counts)
        self.calls = dict(tracer.num_calls)
        self.entry = [
            getattr(getattr(proxy_of(tracer, t), "proxy", None), "node", None) for t in self.tensors
        ]
        self._versions = _versions(self.tensors)
        self.forced = [is_forced(tracer, number) for number in self.numbers]
        self.sources = [source_of(thunk_of(tracer, number)) for number in self.numbers]
        self.symbols = dict(tracer.sympy_expr_tracker)
        self._environments = [_environment_state(mode) for mode in self._modes()]
        stock = tracer.create_node
        with Patches(self._replacements()):
            tracer.create_node = self._noting(stock)
            try:
                yield
            finally:
                del tracer.create_node

    def check_replayable(self) -> None:
        """Raise unless what was recorded can be done again without running its code.

        Raises:
            NeverReplayable: No other such call can either.
            NotReplayable: The message says what cannot.
        """
        self.faults_of_all += [fault for made in self.made if (fault := _fault_of_all(made.node))]
        if self.faults_of_all:
            raise NeverReplayable(self.faults_of_all[0])
        if any(self.tensors[at].requires_grad for at in self.written()):
            self.faults.append("it writes to memory from outside that requires a gradient")
        if [_environment_state(mode) for mode in self._modes()] != self._environments:
            self.faults.append("it changed what is known of the symbols")
        if any(not made.count for made in self.made):
            self.faults.append("it has a node of a function that was called before it")
        nodes = []
        node = self._last._next
        while node is not self.tracer.graph._root:
            nodes.append(node)
            node = node._next
        if nodes != [made.node for made in self.made]:
            self.faults.append("its nodes are not in the order in which they were made")
        self.faults += [fault for made in self.made if (fault := _fault(made.node))]
        if self.faults:
            raise NotReplayable(self.faults[0])

    def written(self) -> dict[int, int]:
        """Return which of the tensors were written to, and how often."""
        counts = zip(self._versions, _versions(self.tensors), strict=True)
        return {at: after - before for at, (before, after) in enumerate(counts) if after != before}

    @contextmanager
    def as_before_writes(self) -> Iterator[None]:
        """Enter a context in which the tensors count their changes as they did before the call."""
        written = self.written()
        add_versions(self.tensors, {at: -count for at, count in written.items()})
        try:
            yield
        finally:
            add_versions(self.tensors, written)

    def _modes(self) -> list[Any]:
        modes = {id(t.fake_mode): t.fake_mode for t in self.tensors if isinstance(t, FakeTensor)}
        return list(modes.values())

    def _noting(self, stock: Callable[..., Node]) -> Callable[..., Node]:
        tracer = self.tracer

        def create_node(
            kind: str, target: Any, args: Any, kwargs: Any, name: str | None = None, type_expr: Any = None
        ) -> Node:
            node = stock(kind, target, args, kwargs, name, type_expr)
            function = tracer.torch_fn_metadata
            count = tracer.torch_fn_counts.get(function, 0) - self.counts.get(function, 0)
            self.made.append(MadeNode(node, name, function, count))
            return node

        return create_node

    def _replacements(self) -> dict[tuple[Any, str], Any]:
        tracer = self.tracer
        known = {id(tensor) for tensor in self.tensors}
        stock_set = in_force(proxy_tensor, "set_proxy_slot")
        stock_call = in_force(proxy_tensor, "proxy_call")

        def set_slot(item: Any, into: Any, proxy: Any) -> None:
            before = tracer.tensor_tracker.get(item) if isinstance(item, torch.Tensor) else None
            if before is not None and into is tracer and id(item) not in known:
                own = {one.node for one in self.made}
                if before.proxy.node not in own:
                    self.faults.append("it changes a tensor that no input leads to")
            stock_set(item, into, proxy)

        def call(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            if _depends_on_data(func, args):
                self.faults_of_all.append(f"{func} depends on data")
            if func is torch.ops.aten.is_nonzero.default:
                self.faults_of_all.append("it asks whether a tensor is true")
            if mode.tracer is not tracer:
                self.faults_of_all.append("it traces a graph of its own")
            return stock_call(mode, func, *args, **kwargs)

        return {(proxy_tensor, "set_proxy_slot"): set_slot, (proxy_tensor, "proxy_call"): call}


def _depends_on_data(func: Any, args: Any) -> bool:
    """Return whether sizes or results of an operator follow from values; `args` are those of `proxy_call`."""
    tags = getattr(func, "tags", ())
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        is_index = func is torch.ops.aten.index.Tensor and len(args) == 3
        return not is_index or any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in tree_iter((args[1][1:], args[2]))
        )
    return False


def _fault_of_all(node: Node) -> str | None:
    if isinstance(node.target, HigherOrderOperator):
        return f"{node.target} runs a graph of its own"
    if unknown := node.meta.keys() - _META:
        return f"{node.target} has {min(unknown)} in its metadata"
    return None


def _fault(node: Node) -> str | None:
    if node.op != "call_function":
        return f"{node.name} is a {node.op} node"
    if "val" not in node.meta or "nn_module_stack" not in node.meta:
        return f"{node.name} has no value"
    for leaf in tree_iter((node.args, node.kwargs)):
        if not isinstance(leaf, (Node, *LITERALS)):
            return f"{node.name} takes a {type(leaf).__name__}"
    for value in tree_iter(node.meta["val"]):
        if isinstance(value, torch.Tensor):
            reason = why_not_observable(value)
            if reason is not None:
                return f"the value of {node.name} is {reason}"
        elif not isinstance(value, (*SymbolicNumber, *LITERALS)):
            return f"the value of {node.name} is a {type(value).__name__}"
    return None


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    with torch._C.DisableTorchFunction():
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def add_versions(tensors: Sequence[torch.Tensor], counts: Mapping[int, int]) -> None:
    """Count changes of tensors, as writes in place do. Views of one memory count together.

    Args:
        tensors: Any.
        counts: How many more, by the position among the tensors.
    """
    with torch._C.DisableTorchFunction():
        after = {at: tensors[at]._version + count for at, count in counts.items()}
        for at, version in after.items():
            torch._C._autograd._unsafe_set_version_counter((tensors[at],), (version,))


def is_forced(tracer: Any, number: Any) -> bool:
    thunk = thunk_of(tracer, number)
    return thunk is not None and thunk.f is None


def _environment_state(mode: Any) -> tuple[Any, ...]:
    """Return what tells whether something new is known of the symbols.

    A guard that is there already is added again where a question has its answer from the example and no
    range or replacement (`Eq(s0 // 64, 1)`). `produce_guards` issues each expression once.
    """
    environment = mode.shape_env
    if environment is None:
        return ()
    return (
        environment._version_counter,
        environment._replacements_version_counter,
        len({guard.expr for guard in environment.guards}),
        len(environment.replacements),
        len(environment.var_to_range),
        environment.num_deferred_runtime_asserts,
        environment.unbacked_symint_counter,
        len(environment.pending_fresh_unbacked_symbols),
        len(environment.divisible),
        len(environment.axioms),
    )
