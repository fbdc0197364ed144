"""Determine what each operator of a program allocates, and which of its results are views."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from fakexport._torch.costs.operator_memory import (
    Allocation,
    CallMemory,
    call_memory,
    is_composite,
    tensors_in,
)
from fakexport._torch.emulation.fake_tensors import FakeTensorMode, mode_of
from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.operators.operator_schema import aliased_arguments, argument_names
from fakexport._torch.operators.real_execution import python_kernels
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.tracing.symbolic_numbers import noted_expression_of, without_new_guards
from fakexport.emulation.devices import emulated_topology
from fakexport.error import type_and_line
from fakexport.planning.memory.temporaries import temporaries

T = TypeVar("T")


class NodeMemory:
    """Determine the memory of nodes. Equal calls, also on devices with the same profile, are run once."""

    def __init__(self) -> None:
        self.unread: dict[str, str] = {}
        """Operators that could not run on fake tensors, with the reason. Their schema was used instead."""
        self._known: dict[Hashable, tuple[CallMemory, str | None]] = {}
        self._composites: dict[OpOverload, bool] = {}
        self._keys: dict[Node, Hashable] = {}
        self._casts: tuple[Any, ...] | None = None
        self._models: dict[torch.device, Hashable] = {}

    @contextmanager
    def casting(self, *autocast: Any) -> Iterator[None]:
        """Enter a context in which operators cast their arguments as in `torch.autocast(*autocast)`."""
        before, self._casts = self._casts, autocast
        try:
            yield
        finally:
            self._casts = before

    def of(self, node: Node) -> CallMemory:
        """Return the memory of a node whose target is an operator overload.

        An output `~i` shares the memory of the i-th tensor among the arguments, in the order of `tensors_in`.
        """
        operator = node.target
        assert isinstance(operator, OpOverload)
        devices = {
            tensor.device
            for source in (*node.all_input_nodes, node)
            for tensor in tensors_in(source.meta.get("val"))
        }
        device = str(*devices) if len(devices) == 1 else None
        where = tuple(self._model(place) for place in devices) if device else tuple(sorted(map(str, devices)))
        key = (operator, self._casts, where, self._key(node.args), self._key(dict(node.kwargs)))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (self._looked_at(node, operator), device)
        found, first = known
        return found if first == device else _moved(found, first, device)

    def _model(self, device: torch.device) -> Hashable:
        """Return the type and profile of a device, which determine the memory that kernels allocate."""
        if device not in self._models:
            machine = emulated_topology()
            is_known = machine is not None and machine.has_device(str(device))
            profile = machine.device(str(device)).profile.name if machine and is_known else str(device)
            self._models[device] = (device.type, profile)
        return self._models[device]

    def _looked_at(self, node: Node, operator: OpOverload) -> CallMemory:
        args, kwargs = values_of(node)
        mode = mode_of(tensors_in((args, kwargs)))
        environment = None if mode is None else mode.shape_env
        with nullcontext() if environment is None else without_new_guards(environment):
            if mode is not None and self._has_to_run(operator) and not effects_of(operator).writes:
                found = self._run(mode, node, operator, args, kwargs)
                if found is not None:
                    return found
            return _by_schema(node, operator)

    def _run(
        self, mode: FakeTensorMode, node: Node, operator: OpOverload, args: Any, kwargs: Any
    ) -> CallMemory | None:
        """Determine the memory of a call by running it on fake tensors; return None if that fails.

        If torch's Python implementation ran instead of the default kernel, the temporary memory is unknown.
        """
        found, reason = run_on_fakes(
            lambda: call_memory(mode, operator, args, kwargs, temporaries),
            lambda made: not _has_lost_symbols(made, node),
            self._casts,
        )
        if found is None:
            self.unread[str(operator)] = reason
            return None
        is_other = reason and _has_temporaries(found)
        return replace(found, unknown=(*found.unknown, str(operator))) if is_other else found

    def _has_to_run(self, operator: OpOverload) -> bool:
        if self._casts is not None:
            return True
        known = self._composites.get(operator)
        if known is None:
            known = self._composites[operator] = is_composite(operator)
        return known

    def _key(self, argument: Any) -> Hashable:
        if isinstance(argument, Node):
            known = self._keys.get(argument)
            if known is None:
                known = self._keys[argument] = value_key(argument.meta.get("val"), has_device=False)
            return known
        if isinstance(argument, (list, tuple)):
            return tuple([self._key(item) for item in argument])
        if isinstance(argument, dict):
            return tuple([(name, self._key(value)) for name, value in argument.items()])
        return type(argument), argument if isinstance(argument, Hashable) else id(argument)


def run_on_fakes(
    call: Callable[[], T], is_good: Callable[[Any], bool], casts: Sequence[Any] | None
) -> tuple[T | None, str]:
    """Run `call` on fake tensors. Return its result (or None) and why the default kernel failed (or "").

    A kernel that does not support symbolic sizes raises an error, or returns a result with the sizes of the
    example inputs, which `is_good` rejects. Then torch's Python implementation runs. `casts` are the
    arguments of the surrounding autocast region, or None.
    """
    reason = ""
    for kernels in (nullcontext, python_kernels):
        autocast = nullcontext() if casts is None else torch.autocast(*casts)
        try:
            with kernels(), torch_logs_silenced(), autocast:
                found = call()
        # For example, there is no fake kernel, or a size is known only at run time.
        except Exception as error:
            reason = type_and_line(error)
        else:
            if is_good(found):
                return found, reason
            reason = "its fake kernel does not keep symbolic sizes"
    return None, reason


def _has_temporaries(memory: CallMemory) -> bool:
    """Return whether a call allocates memory that it also frees."""
    return any(event < 0 for event in memory.events)


def _moved(found: CallMemory, source: str | None, device: str | None) -> CallMemory:
    assert device is not None
    taken = (replace(one, device=device) if one.device == source else one for one in found.allocations)
    return replace(found, allocations=tuple(taken))


def _has_lost_symbols(memory: CallMemory, node: Node) -> bool:
    results = zip(memory.outputs, tensors_in(node.meta.get("val")), strict=False)
    return any(
        home >= 0
        and isinstance(memory.allocations[home].bytes, int)
        and isinstance(tensor.numel(), torch.SymInt)
        for home, tensor in results
    )


def values_of(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a node with fake tensors and symbolic numbers instead of nodes."""
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda source: source.meta.get("val"))
    return args, kwargs


def value_key(value: Any, *, has_device: bool = True) -> Hashable:
    """Return a cache key for arguments: dtypes, sizes, strides, and optionally devices."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        numbers = tuple([_number_key(number) for number in (*value.shape, *strides)])
        return value.dtype, value.device if has_device else None, numbers
    if isinstance(value, (list, tuple)):
        return tuple([value_key(item, has_device=has_device) for item in value])
    return _number_key(value)


def _number_key(value: Any) -> Hashable:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        expression: Hashable = noted_expression_of(value)
        return expression
    return value if isinstance(value, Hashable) else id(value)


def _by_schema(node: Node, operator: OpOverload) -> CallMemory:
    """Determine from the operator's schema which results are views. Take the other sizes from the node."""
    value = node.meta.get("val")
    returned = [value] if len(operator._schema.returns) == 1 else list(value or ())
    args, kwargs = values_of(node)
    places = _places(operator, args, kwargs)
    taken: list[Allocation] = []
    outputs: list[int] = []
    for result, owner in zip(returned, aliased_arguments(operator), strict=False):
        owned = places.get(owner, ()) if owner is not None else ()
        for index, tensor in enumerate(tensors_in(result)):
            if owned:
                outputs.append(~owned[index if len(owned) > 1 else 0])
            else:
                outputs.append(len(taken))
                taken.append(allocation(tensor, str(operator)))
    events = [*range(len(taken))]
    unknown: tuple[str, ...] = ()
    for device, size in temporaries(operator, args, kwargs, value):
        if size is None:
            unknown = (str(operator),)
            continue
        events.insert(len(taken), len(taken))
        events.append(~len(taken))
        taken.append(Allocation(str(operator), device, size))
    return CallMemory(tuple(taken), tuple(events), tuple(outputs), unknown)


def _places(operator: OpOverload, args: Iterable[Any], kwargs: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Map each argument name to the positions of its tensors in the flat list of all tensor arguments."""
    places: dict[str, tuple[int, ...]] = {}
    first = 0
    for name, value in (*zip(argument_names(operator), args, strict=False), *kwargs.items()):
        count = len(tensors_in(value))
        places[name] = tuple(range(first, first + count))
        first += count
    return places


def allocation(tensor: torch.Tensor, operator: str) -> Allocation:
    """Return the memory that a tensor needs if it is not a view."""
    size = tensor.numel() * tensor.itemsize
    return Allocation(operator, str(tensor.device), size, tuple(tensor.shape), tensor.dtype)
