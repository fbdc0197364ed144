"""Building a model of fake tensors from a factory or from a module."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import FakeTensorMode, is_fake_tensor, real_to_fake
from fakexport._torch.pytree import tree_map
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport._torch.wrapper_subclasses import held_bytes
from fakexport.devices import emulated_topology
from fakexport.error import InvalidType, InvalidValue
from fakexport.history import Recording, hand_on_value, is_of_real_data, recording, remember_value

from .adoption import LARGE_REAL_BYTES, adopt, foreign_tensors
from .cached_functions import forget_cached_fakes
from .mode import fake_mode
from .module_tensors import held_tensors, slots
from .place import place, placement_as_made
from .placement import DeviceMap, Placement, check_device
from .pretrained_models import register_caches
from .subclasses import check_class, check_input


@dataclass(frozen=True)
class Built:
    """A module of fake tensors, and what its construction left behind.

    Args:
        module: The model; every parameter and buffer is a fake tensor of `mode`.
        args: Positional example inputs that the factory gave, as fakes; real ones are on the input device.
        kwargs: Keyword example inputs.
        mode: The fake mode, a stock `FakeTensorMode` with a `ShapeEnv`.
        recording: How the tensors were made; `recording.value_of(t)` returns their values.
        placement: Where the tensors are.
        build_seconds: Wall time of the construction and the placement.
        notes: Sentences about what did not go as asked: real tensors above 1 MiB, other dtypes, ties.
        has_inputs: Whether the factory returned example inputs, `()` for a `forward` without any.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    mode: FakeTensorMode
    recording: Recording
    placement: Placement
    build_seconds: float
    notes: tuple[str, ...] = ()
    has_inputs: bool = False


@one_at_a_time
def build(
    factory: Callable[[], Any] | nn.Module,
    *,
    device_map: str | Mapping[str, Any] | DeviceMap | None = None,
    dtype: torch.dtype | None = None,
    default_device: str | torch.device | None = None,
) -> Built:
    """Build a model without data, place it, and record how its tensors were made.

    Values that the constructor reads are computed from the recorded operations. Use `fake_mode` to inspect
    at a model without placing it.

    Args:
        factory: A function without arguments that returns a module, `(module, args)` or
            `(module, args, kwargs)`; or a module, which is copied without its data.
        device_map: What `DeviceMap.parse` takes. Default: the model stays where the factory makes it; a
            module goes to the default device.
        dtype: Floating dtype of the model. A factory runs with it as torch's default dtype: what it makes
            in a dtype of its own choice (float32 norms, `inv_freq`) keeps that, and a note counts it. A
            module is converted as `module.to(dtype)` does.
        default_device: Where the factory makes tensors before they are placed. Default: the device of the
            map if it has one, else the topology's default device.
    Returns:
        The built module and its facts.
    Raises:
        TypeError: the factory returns something else, or the module cannot be copied. One line.
        ValueError: the map does not fit the model or the topology, or `dtype` is not floating.
        UnreplayableRead: the constructor reads a value that cannot be computed.
        SubclassNotKept: a tensor of the model, or an input, has a class that would be lost.
        Exception: whatever the factory raises.

    Example:
        >>> build(lambda: nn.Linear(3, 2)).module.weight.shape
        torch.Size([2, 3])
    """
    if dtype is not None and not dtype.is_floating_point:
        raise InvalidValue(f"the dtype of a model must be floating-point, got {dtype}")
    started = time.perf_counter()
    topology = emulated_topology()
    usual = str(default_device or (topology.default_device if topology else "cpu"))
    if device_map is None and isinstance(factory, nn.Module):
        device_map = usual
    wanted = None if device_map is None else DeviceMap.parse(device_map)
    device = torch.device(default_device or (wanted and wanted.only_device) or usual)
    check_device(str(device), topology)
    with fake_mode() as mode, recording(mode) as recorded:
        with _defaults(device, dtype):
            module, inputs = _made(factory)
        args, kwargs = inputs or ((), {})
        for held in held_tensors(module):
            check_class(held.path, held.tensor)
        register_caches(module)
        notes = _real_notes(module)
        if foreign := foreign_tensors(module, mode):
            if wanted is None and all(slot.path in foreign for slot in slots(module)):
                wanted = DeviceMap.parse(usual)  # A module made elsewhere says nothing about the target.
            module = adopt(module, recorded, device)
        if dtype is not None and isinstance(factory, nn.Module):
            module.to(dtype)
        placement = placement_as_made(module, recorded, device) if wanted is None else place(module, wanted)
        with recorded.paused():
            target = torch.device(placement.input_device)
            args, kwargs = _as_fakes((args, kwargs), mode, target)
            if wanted is not None:
                args, kwargs = _moved((args, kwargs), device, target)
    forget_cached_fakes()
    notes += _dtype_notes(module, dtype)
    seconds = time.perf_counter() - started
    notes += placement.notes
    return Built(
        module, args, kwargs, mode, recorded, placement, seconds, tuple(notes), has_inputs=inputs is not None
    )


@contextmanager
def _defaults(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with device if device.type != "cpu" else nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


def _made(
    factory: Callable[[], Any] | nn.Module,
) -> tuple[nn.Module, tuple[tuple[Any, ...], dict[str, Any]] | None]:
    """Return the module, and the example inputs or None."""
    made = factory if isinstance(factory, nn.Module) else factory()
    match made:
        case nn.Module():
            return made, None
        case (nn.Module() as module, list() | tuple() as args):
            return module, (tuple(args), {})
        case (nn.Module() as module, list() | tuple() as args, Mapping() as kwargs):
            return module, (tuple(args), dict(kwargs))
    names = [type(item).__name__ for item in made] if isinstance(made, tuple) else [type(made).__name__]
    what = f"a tuple of {', '.join(names)}" if isinstance(made, tuple) else names[0]
    raise InvalidType(
        f"a factory returns a module, (module, args) or (module, args, kwargs); this one returned {what}"
    )


def _as_fakes(inputs: Any, mode: FakeTensorMode, target: torch.device) -> Any:
    """Return the example inputs as fakes.

    A real one, which no virtual device can hold, is put on `target`, and so is what the factory computed
    from real ones.
    """

    def fake(value: Any) -> Any:
        check_input("an example input", value)
        if not isinstance(value, torch.Tensor):
            return value
        is_fake = is_fake_tensor(value)
        if is_fake and (value.device == target or not is_of_real_data(value)):
            return value
        made = real_to_fake(mode, value, target)
        if is_fake:
            hand_on_value(value, made)
        else:
            remember_value(made, value)
        return made

    return tree_map(fake, inputs)


def _moved(inputs: Any, default: torch.device, target: torch.device) -> Any:
    """Return the example inputs on the device of the first module, if they are on the default device."""

    def move(value: Any) -> Any:
        is_there = not isinstance(value, torch.Tensor) or value.device in (target, torch.device("meta"))
        return value if is_there or value.device != default else value.to(target)

    return tree_map(move, inputs)


def _real_notes(module: nn.Module) -> list[str]:
    real = [
        f"{slot.path} was created with {held_bytes(slot.tensor):,} bytes of real data"
        for slot in slots(module)
        if not is_fake_tensor(slot.tensor) and slot.tensor.device.type != "meta"
        and held_bytes(slot.tensor) > LARGE_REAL_BYTES
    ]  # fmt: skip
    return real


def _dtype_notes(module: nn.Module, dtype: torch.dtype | None) -> list[str]:
    """Return a note for each floating dtype of parameters that is not the one that was asked for."""
    if dtype is None:
        return []
    others: dict[torch.dtype, list[str]] = {}
    for slot in slots(module):
        if slot.is_parameter and slot.tensor.is_floating_point() and slot.tensor.dtype != dtype:
            others.setdefault(slot.tensor.dtype, []).append(slot.path)
    return [
        f"{len(paths)} parameters are {other} and not {dtype}, as the model chose: {paths[0]}, ..."
        for other, paths in others.items()
    ]
