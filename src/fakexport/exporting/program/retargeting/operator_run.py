"""Run one node on fake tensors, with device rules as strict as those of real devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node, map_arg

from fakexport._torch.emulation.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    fake_elsewhere,
    quiet_fake_mode,
)
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.operators.operator_schema import is_mutating
from fakexport._torch.operators.real_execution import python_kernels
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.tracing.dispatch_observer import observed
from fakexport._torch.tracing.symbolic_numbers import without_new_guards
from fakexport._torch.tracing.vmap_steps import want_gradient
from fakexport.error import type_and_line
from fakexport.exporting.program.retargeting.strict_devices import device_clash
from fakexport.exporting.program.retargeting.value_key import NO_KEY, ValueKeys, value_difference

# The choice of kernel, and thus the layout of the result, depends on whether a gradient is required.
_CHOOSES_BY_AUTOGRAD = frozenset({torch.ops.aten.scaled_dot_product_attention.default})


@dataclass(frozen=True)
class Outcome:
    """The result of running a node.

    Args:
        value: The value of the node, or None if it could not be run.
        clash: The reason why a real device rejects the node's inputs. The node was then run with all inputs
            on one device.
        error: The reason why the node could not be run, on one line.
        is_refused: Whether the new devices cause the error: the node runs on the devices before the move.
    """

    value: Any
    clash: str | None = None
    error: str | None = None
    is_refused: bool = False


@dataclass
class OperatorRuns:
    """Runs nodes on fake tensors. Calls with the same operator, input metadata and arguments run only once.

    Args:
        before: Values of the nodes on the old devices.
        now: Values of the nodes on the new devices.
        in_autograd: Nodes whose value requires a gradient.
        devices_before: Function that returns a context in which the old devices exist.
    """

    before: Mapping[Node, Any]
    now: Mapping[Node, Any]
    in_autograd: set[Node]
    devices_before: Callable[[], AbstractContextManager[Any]]
    _known: dict[Any, Outcome] = field(default_factory=dict)
    _keys: ValueKeys = field(default_factory=ValueKeys)

    def run(self, node: Node, context: tuple[Any, ...]) -> Outcome:
        """Run a node that calls an operator.

        Args:
            node: The node. `before` must contain its old value, and both `before` and `now` must contain the
                values of its inputs.
            context: Other conditions that determine the node's metadata: the enclosing autocast regions.
        """
        key = self._key(node, context)
        if key is NO_KEY:
            return self._run(node)
        if key not in self._known:
            self._known[key] = self._run(node)
        return self._known[key]

    def _key(self, node: Node, context: tuple[Any, ...]) -> Any:
        if not isinstance(node.target, OpOverload) or is_mutating(node.target):
            return NO_KEY  # A Python function's result may depend on more than its arguments.
        arguments = self._keys.of((node.args, node.kwargs), self.now)
        if arguments is NO_KEY:
            return NO_KEY
        wanted: tuple[bool, ...] = ()
        if node.target in _CHOOSES_BY_AUTOGRAD:
            wanted = tuple(source in self.in_autograd for source in node.all_input_nodes)
        return node.target, context, wanted, arguments

    def _run(self, node: Node) -> Outcome:
        clash: str | None = None
        try:
            value = self._call(node, self.now)
        except _Clash as error:
            clash = str(error)
            inputs = tree_leaves([self.now[source] for source in node.all_input_nodes])
            try:
                value = self._call(node, self.now, _common_device(inputs))
            except Exception as error:
                return Outcome(None, clash, type_and_line(error))
        except Exception as error:
            return Outcome(None, None, type_and_line(error), is_refused=self._again(node) is not None)
        return Outcome(value if clash else self._without_other_causes(node, value), clash)

    def _without_other_causes(self, node: Node, value: Any) -> Any:
        """Return the new value, or the recorded one if the old devices also produce the new value.

        Running an operator again can change the value that the export recorded. For example, `dropout` in
        evaluation mode returns its input, but the export records a copy. The recorded value is then correct,
        except for the device.
        """
        noted = self.before[node]
        if not _is_different(noted, value):
            return value
        again = self._again(node)
        if again is None or _is_different(again, value):
            return value
        return on_devices_of(value, noted)

    def _again(self, node: Node) -> Any:
        """Return the results of a node on the old devices, or None if the node fails on them."""
        try:
            with self.devices_before():
                return self._call(node, self.before)
        except Exception:
            return None

    def _call(self, node: Node, values: Mapping[Node, Any], device: torch.device | None = None) -> Any:
        """Run a node on these values, moved to `device` if it is not None, and return its results."""
        is_choosing = node.target in _CHOOSES_BY_AUTOGRAD
        is_mutated = _is_mutating(node)  # Earlier nodes must not see the metadata that this node changes.

        def value(source: Node) -> Any:
            def given(leaf: Any) -> Any:
                if not isinstance(leaf, FakeTensor) or not (is_choosing or is_mutated or device):
                    return leaf
                copied = fake_elsewhere(leaf, device or leaf.device)
                return want_gradient(copied) if is_choosing and source in self.in_autograd else copied

            return tree_map(given, values[source])

        args, kwargs = map_arg((node.args, node.kwargs), value)
        with quiet_fake_mode(), torch.set_grad_enabled(is_choosing):
            result = node.target(*args, **kwargs)  # type: ignore[operator]
            return result.detach() if is_choosing else result


@contextmanager
def strict_rules(mode: FakeTensorMode) -> Iterator[None]:
    """Enter a context in which operators on fake tensors of `mode` have the device rules of real hardware.

    The shape environment of the mode is not changed.
    """
    with ExitStack() as stack:
        stack.enter_context(mode)
        stack.enter_context(python_kernels())
        stack.enter_context(torch.no_grad())
        stack.enter_context(observed(mode, _observe))
        if mode.shape_env is not None:
            stack.enter_context(without_new_guards(mode.shape_env))
        yield


class _Clash(Exception):
    """A real device rejects the inputs of an operator. The message is the reason."""


def _observe(run: Callable[..., Any], operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    clash = device_clash(operator, args, kwargs)
    if clash is not None:
        raise _Clash(clash)
    return run()


def on_devices_of(value: Any, noted: Any) -> Any:
    """Return `noted` with each tensor on the device of the corresponding tensor in `value`."""
    values = iter(tree_leaves(value))

    def on_device(leaf: Any) -> Any:
        now = next(values, None)
        if isinstance(leaf, FakeTensor) and isinstance(now, torch.Tensor):
            return fake_elsewhere(leaf, now.device)
        return leaf

    return tree_map(on_device, noted)


def _is_mutating(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and is_mutating(node.target)


def _is_different(noted: Any, value: Any) -> bool:
    pairs = zip(tree_leaves(noted), tree_leaves(value), strict=False)
    return any(
        isinstance(a, FakeTensor) and isinstance(b, FakeTensor) and value_difference(a, b) is not None
        for a, b in pairs
    )


def _common_device(leaves: Sequence[Any]) -> torch.device:
    """Return the device on which to run a call with clashing inputs, preferably an accelerator."""
    devices = [leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), devices[0])
