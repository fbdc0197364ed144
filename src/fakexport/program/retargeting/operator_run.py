"""Running one node on fakes, under the rules of real devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node, map_arg

from fakexport._torch.dispatch_observer import observed
from fakexport._torch.fake_tensors import FakeTensor, FakeTensorMode, fake_elsewhere, quiet_fake_mode
from fakexport._torch.operator_registry import OpOverload
from fakexport._torch.operator_schema import is_mutating
from fakexport._torch.python_kernels import python_kernels
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.symbolic_numbers import without_new_guards
from fakexport._torch.vmap_steps import want_gradient
from fakexport.error import type_and_line
from fakexport.program.retargeting.strict_devices import DeviceClash, device_clash
from fakexport.program.retargeting.value_key import NO_KEY, ValueKeys, value_difference

# Which kernel runs, and so the layout of the result, depends on whether a gradient is wanted.
_CHOOSES_BY_AUTOGRAD = frozenset({torch.ops.aten.scaled_dot_product_attention.default})


@dataclass(frozen=True)
class Outcome:
    """What came of running a node.

    Args:
        value: Its value; None where it could not be run.
        clash: What real devices would say against its inputs. It was then run with all of them on one device.
        error: Why it could not be run, on one line.
        is_refused: Whether it can be run on the devices of before: the new ones are to blame.
    """

    value: Any
    clash: DeviceClash | None = None
    error: str | None = None
    is_refused: bool = False


@dataclass
class OperatorRuns:
    """Runs nodes on fakes. Equal calls (operator, metadata of the inputs, other arguments) are run once.

    Args:
        before: Values of the nodes on the devices of before.
        now: Values of the nodes on the new ones.
        in_autograd: Nodes whose value a gradient was wanted of.
        devices_before: Makes the context in which the devices of before exist.
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
            node: Its value of before is noted in `before`, those of its inputs in `before` and `now`.
            context: What else decides its metadata: the autocast regions around it.
        """
        key = self._key(node, context)
        if key is NO_KEY:
            return self._run(node)
        if key not in self._known:
            self._known[key] = self._run(node)
        return self._known[key]

    def _key(self, node: Node, context: tuple[Any, ...]) -> Any:
        if not isinstance(node.target, OpOverload) or is_mutating(node.target):
            return NO_KEY  # Of a function it is not known what else its result depends on.
        arguments = self._keys.of((node.args, node.kwargs), self.now)
        if arguments is NO_KEY:
            return NO_KEY
        wanted: tuple[bool, ...] = ()
        if node.target in _CHOOSES_BY_AUTOGRAD:
            wanted = tuple(source in self.in_autograd for source in node.all_input_nodes)
        return node.target, context, wanted, arguments

    def _run(self, node: Node) -> Outcome:
        clash = None
        try:
            value = self._call(node, self.now)
        except _Clash as error:
            clash = error.clash
            inputs = tree_leaves([self.now[source] for source in node.all_input_nodes])
            try:
                value = self._call(node, self.now, _common_device(inputs))
            except Exception as error:
                return Outcome(None, clash, type_and_line(error))
        except Exception as error:
            return Outcome(None, None, type_and_line(error), is_refused=self._again(node) is not None)
        return Outcome(value if clash else self._without_other_causes(node, value), clash)

    def _without_other_causes(self, node: Node, value: Any) -> Any:
        """Return the value, unless running the node on the devices of before differs from its note as much.

        An export notes some values differently from running their operator again gives them: of `dropout`,
        which returns its input, it notes a copy. The note is right, then, but for the device.
        """
        noted = self.before[node]
        if not _is_different(noted, value):
            return value
        again = self._again(node)
        if again is None or _is_different(again, value):
            return value
        return on_devices_of(value, noted)

    def _again(self, node: Node) -> Any:
        """Return what a node returns on the old devices; None if it fails there as well."""
        try:
            with self.devices_before():
                return self._call(node, self.before)
        except Exception:
            return None

    def _call(self, node: Node, values: Mapping[Node, Any], device: torch.device | None = None) -> Any:
        """Return what a node returns for these values, moved to `device` if one is given."""
        is_choosing = node.target in _CHOOSES_BY_AUTOGRAD
        is_mutated = _is_mutating(node)  # What it does to metadata is not to be seen at earlier nodes.

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
    """Enter a context in which operators run on fakes of `mode` as in an export, by real device rules.

    The shape environment of the mode learns nothing from them.
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
    def __init__(self, clash: DeviceClash) -> None:
        super().__init__(clash.text)
        self.clash = clash


def _observe(run: Callable[..., Any], operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    clash = device_clash(operator, args, kwargs)
    if clash is not None:
        raise _Clash(clash)
    return run()


def on_devices_of(value: Any, noted: Any) -> Any:
    """Return the tensors of `noted` on the devices of those of `value`, which has the same structure."""
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
    """Return whether tensors at the same places differ in more than the device."""
    pairs = zip(tree_leaves(noted), tree_leaves(value), strict=False)
    return any(
        isinstance(a, FakeTensor) and isinstance(b, FakeTensor) and value_difference(a, b) is not None
        for a, b in pairs
    )


def _common_device(leaves: Sequence[Any]) -> torch.device:
    """Return where a healed call runs: on the first accelerator of its tensors."""
    devices = [leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), devices[0])
