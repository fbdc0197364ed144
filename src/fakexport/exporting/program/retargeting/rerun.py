"""Move a graph to other devices, and determine how its operators behave there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node, map_arg

from fakexport._torch.emulation.fake_tensors import FakeTensor, FakeTensorMode, fake_elsewhere
from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.speed.fast_paths import fast_paths
from fakexport._torch.tracing.script_objects import is_fake_object
from fakexport._torch.tracing.vmap_steps import (
    VMAP_LEVEL_STEPS,
    transform_levels_closed,
    want_gradient,
    with_other_memory,
)
from fakexport.exporting.program.devices import device_of_literal
from fakexport.exporting.program.node_names import module_path, operator_name
from fakexport.exporting.program.retargeting.boundaries import Boundaries
from fakexport.exporting.program.retargeting.device_move import Move
from fakexport.exporting.program.retargeting.operator_run import OperatorRuns, on_devices_of, strict_rules
from fakexport.exporting.program.retargeting.strict_devices import device_clash
from fakexport.exporting.program.retargeting.value_key import value_difference
from fakexport.exporting.program.walk import attribute

_ASSERT_METADATA = "aten._assert_tensor_metadata.default"


FindingKind = Literal["clash", "refusal", "unproven"]


@dataclass(frozen=True)
class Finding:
    """A node that fails on the new devices, or that cannot be verified.

    Args:
        kind: `clash`: the inputs are on different devices, and the operator does not support this;
            `refusal`: the operator runs on the old devices, but fails on the new ones; `unproven`: the node
            cannot be run on fake tensors, so its new value is the old value with the device replaced.
        node: The node.
        path: Path of the node's module.
        reason: The reason, on one line.
    """

    kind: FindingKind
    node: Node
    path: str
    reason: str


@dataclass(frozen=True)
class Change:
    """A node whose value differs in more than the device, because the new device uses a different kernel."""

    node: Node
    field: str
    before: str
    now: str


@dataclass
class Rerun:
    """Replaces the devices of a graph in place, and reruns its nodes to find their new values.

    After the run, `findings` contains the nodes that fail on real devices of the new types. The run continues
    after such a node with a repaired value, so that later failures are found too.

    Args:
        mode: The fake mode of the program's values.
        move: The replacement of each device.
        devices_before: Function that returns a context in which the current devices of the graph exist.
        boundaries: Inserts moves of tensors to the device of a module. None means no moves.
    """

    mode: FakeTensorMode
    move: Move
    devices_before: Callable[[], AbstractContextManager[Any]]
    boundaries: Boundaries | None = None
    findings: list[Finding] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._before: dict[Node, Any] = {}
        self._now: dict[Node, Any] = {}
        self._in_autograd: set[Node] = set()
        self._is_grad_enabled = True
        self._autocast: tuple[Any, ...] = ()
        self._operators = OperatorRuns(self._before, self._now, self._in_autograd, self.devices_before)
        self._finished: dict[GraphModule, list[Any]] = {}

    def run(self, graph_module: GraphModule, inputs: dict[Node, Any]) -> None:
        """Run the main graph and every subgraph.

        Args:
            graph_module: The graph. It is changed in place.
            inputs: New value of each placeholder.
        """
        with strict_rules(self.mode), transform_levels_closed(), fast_paths("simplified_sizes"):
            for node, value in inputs.items():
                self._begin(node, value)
            self._run(graph_module, "")

    def _begin(self, node: Node, value: Any) -> None:
        self._before[node] = node.meta.get("val")
        self._now[node] = value
        if not is_fake_object(value):  # For an object, a program records the class.
            node.meta["val"] = value
        if isinstance(value, torch.Tensor) and value.requires_grad:
            self._in_autograd.add(node)

    def _run(self, owner: GraphModule, path: str) -> list[Any]:
        """Run a graph that a node in the module `path` calls, and return the values of its output."""
        for node in [*owner.graph.nodes]:
            if node.op == "get_attr":
                self._get(owner, node, path)
            elif node.op == "call_function":
                self._call(node, module_path(node) or path)
        output = owner.graph.output_node()
        values = self._all(output.args[0])
        if "val" in output.meta:
            output.meta["val"] = values
        return tree_leaves(values)

    def _get(self, owner: GraphModule, node: Node, path: str) -> None:
        self._before[node] = node.meta.get("val")
        self._now[node] = attribute(owner, str(node.target))
        if "val" in node.meta:
            self._now[node] = node.meta["val"] = self._moved(node.meta["val"], module_path(node) or path)

    def _call(self, node: Node, path: str) -> None:
        node.args = self._replaced(node.args, path)
        node.kwargs = self._replaced(node.kwargs, path)
        before = self._before[node] = node.meta.get("val")
        has_gradient = not self._in_autograd.isdisjoint(node.all_input_nodes)
        if self._is_grad_enabled and has_gradient and _is_differentiable(node, before):
            self._in_autograd.add(node)
        subgraphs = [source for source in node.all_input_nodes if isinstance(self._now[source], GraphModule)]
        if self.boundaries is not None and isinstance(node.target, OpOverload):
            self.boundaries.bring_inputs(node, path, self._now, self._before)
        if subgraphs:
            self._note(node, self._run_subgraphs(node, path, subgraphs))
        elif node.target is getitem:
            self._note(node, getitem(*self._all(node.args)))
        elif any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(before)):
            self._operate(node, path)
        elif node.target in VMAP_LEVEL_STEPS:
            self._now[node] = node.target(*self._all(node.args))
        else:  # A size, a number or nothing: it has no device, so the old value is kept.
            self._now[node] = before
            self._check(node, path)

    def _operate(self, node: Node, path: str) -> None:
        outcome = self._operators.run(node, self._autocast)
        if outcome.clash is not None:
            self.findings.append(Finding("clash", node, path, outcome.clash))
        elif outcome.error is not None:
            kind: FindingKind = "refusal" if outcome.is_refused else "unproven"
            self.findings.append(Finding(kind, node, path, outcome.error))
        value = outcome.value if outcome.error is None else self._moved(self._before[node], path)
        if effects_of(node.target).changes_geometry:
            self._now[node.args[0]] = value  # type: ignore[index]
        self._note(node, value)

    def _check(self, node: Node, path: str) -> None:
        if not isinstance(node.target, OpOverload):
            return
        if operator_name(node) == _ASSERT_METADATA:
            tensor = self._all(node.args[0])
            if node.kwargs.get("device") is not None and isinstance(tensor, torch.Tensor):
                node.kwargs = {**node.kwargs, "device": tensor.device}
            return
        clash = device_clash(node.target, self._all(node.args), self._all(node.kwargs))
        if clash is not None:
            self.findings.append(Finding("clash", node, path, clash))

    def _run_subgraphs(self, node: Node, path: str, subgraphs: Sequence[Node]) -> Any:
        """Return the value of a node that runs subgraphs. A shared subgraph is run only once."""
        arguments = tree_leaves(node.args)
        first = next(i for i, argument in enumerate(arguments) if argument in subgraphs)
        operands = [argument for argument in arguments[first:] if argument not in subgraphs]
        for source in subgraphs:
            subgraph = self._now[source]
            if subgraph not in self._finished:
                self._bind(subgraph, operands, path)
                with self._inside(node):
                    self._finished[subgraph] = self._run(subgraph, path)
        before = self._before[node]
        outputs = self._finished[self._now[subgraphs[-1]]]
        if len(tree_leaves(before)) != len(outputs):
            return self._moved(before, path)
        if operator_name(node).startswith("higher_order.wrap_with_"):
            return _filled(before, outputs)
        return on_devices_of(outputs, before)

    def _bind(self, subgraph: GraphModule, operands: Sequence[Any], path: str) -> None:
        """Move the values of a subgraph's placeholders to the devices of the arguments."""
        inputs = subgraph.graph.find_nodes(op="placeholder")
        for position, node in enumerate(inputs):
            operand = operands[position] if len(inputs) == len(operands) else None
            before = node.meta.get("val")
            given = self._all(operand)
            if isinstance(before, FakeTensor) and isinstance(given, torch.Tensor):
                value: Any = fake_elsewhere(before, given.device)
                value = want_gradient(value) if before.requires_grad else value
            else:
                value = self._moved(before, path)
            self._begin(node, value)
            if operand in self._in_autograd:
                self._in_autograd.add(node)

    @contextmanager
    def _inside(self, node: Node) -> Iterator[None]:
        """Enter the context that a node sets for its subgraph: autocast or grad mode."""
        outer = self._autocast, self._is_grad_enabled
        name = operator_name(node)
        if name == "higher_order.wrap_with_set_grad_enabled":
            self._is_grad_enabled = bool(node.args[0])
        if name == "higher_order.wrap_with_autocast":
            region: Any = node.args[:4]
            device_type, dtype, enabled, cache_enabled = region
            self._autocast = (*self._autocast, region)
            with torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled):
                yield
        else:
            yield
        self._autocast, self._is_grad_enabled = outer

    def _note(self, node: Node, value: Any) -> None:
        """Record the value of a node. If only the device changed, this is the old value on its new device.

        Inside of `vmap`, the run continues with the batched result, although a loaded program records the
        value of one element.
        """
        before = self._before[node]
        now, then = tree_leaves(value), tree_leaves(before)
        noted = value
        if len(now) == len(then):
            pairs = zip(now, then, strict=True)
            noted = _filled(before, [self._noted(node, *pair) for pair in pairs])
        self._now[node] = value if any(map(_is_batched, now)) else noted
        if "val" in node.meta:
            node.meta["val"] = noted

    def _noted(self, node: Node, now: Any, before: Any) -> Any:
        if _is_batched(now):
            return fake_elsewhere(before, now.device) if isinstance(before, FakeTensor) else now
        if not isinstance(now, FakeTensor) or not isinstance(before, FakeTensor):
            return before
        difference = value_difference(before, now)
        if difference is not None:
            self.changes.append(Change(node, *difference))
        noted = fake_elsewhere(before if difference is None else now, now.device)
        return want_gradient(noted) if before.requires_grad else noted

    def _moved(self, value: Any, path: str) -> Any:

        def elsewhere(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, FakeTensor):
                return tensor
            return fake_elsewhere(tensor, self.move.of(tensor.device, path))

        def moved(leaf: Any) -> Any:
            return with_other_memory(leaf, elsewhere) if isinstance(leaf, torch.Tensor) else leaf

        return tree_map(moved, value)

    def _replaced(self, value: Any, path: str) -> Any:
        if device_of_literal(value) is not None:
            return self.move.of_literal(value, path)
        if isinstance(value, (tuple, list)):
            return type(value)(self._replaced(item, path) for item in value)
        if isinstance(value, dict):
            return {key: self._replaced(item, path) for key, item in value.items()}
        return value

    def _all(self, arguments: Any) -> Any:
        return map_arg(arguments, self._now.__getitem__)


def _is_batched(value: Any) -> bool:
    """Return whether a value is a batched tensor of `vmap` that wraps a fake tensor."""
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)


def _is_differentiable(node: Node, value: Any) -> bool:
    """Return whether gradients may flow through a node. Indices, masks and `detach` stop them."""
    is_float = any(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in tree_leaves(value))
    return is_float and not operator_name(node).startswith("aten.detach")


def _filled(like: Any, leaves: Sequence[Any]) -> Any:
    remaining = iter(leaves)
    return tree_map(lambda _: next(remaining), like)
