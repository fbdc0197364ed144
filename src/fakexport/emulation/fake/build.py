"""Build a model of fake tensors from a factory or a module."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fakexport._torch.default_dtype import default_dtype
from fakexport._torch.emulation.fake_tensors import FakeTensorMode, is_fake_tensor, real_to_fake
from fakexport._torch.emulation.wrapper_subclasses import held_bytes
from fakexport._torch.pytree import tree_map
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.emulation.devices import emulated_topology
from fakexport.emulation.history import (
    Recording,
    hand_on_value,
    is_of_real_data,
    recording,
    set_constant_value,
)
from fakexport.error import InvalidType, InvalidValue

from .adoption import LARGE_REAL_BYTES, adopt, foreign_tensors
from .cached_functions import forget_cached_fakes
from .mode import fake_mode
from .module_tensors import Inventory
from .place import place, placement_as_made
from .placement import DeviceMap, Placement, check_device
from .pretrained_models import register_caches
from .subclasses import check_class, check_input


@dataclass(frozen=True)
class FakeModel:
    """A module of fake tensors, and facts about its construction.

    Args:
        module: The model; every parameter and buffer is a fake tensor of `mode`.
        args: Positional example inputs from the factory, as fake tensors. Inputs that were real tensors are
            on the input device.
        kwargs: Keyword example inputs.
        mode: The fake mode, a regular `FakeTensorMode` with a `ShapeEnv`.
        recording: The recording of the tensors' history; `recording.constant_value(t)` returns a tensor's
            value.
        placement: The devices of the tensors.
        build_seconds: Wall time of the construction and the placement.
        notes: Sentences about differences from what was requested: real tensors above 1 MiB, parameters of a
            different dtype, and tied weights on a different device.
        has_inputs: Whether the factory returned example inputs. True also for `()`, which means that
            `forward` has no inputs.
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
) -> FakeModel:
    """Build a model without data, place it, and record how its tensors are created.

    Values that the constructor reads are computed from the recorded operators. To build a model without
    placing it on devices, use `fake_mode`.

    Args:
        factory: A function without arguments that returns a module, `(module, args)` or
            `(module, args, kwargs)`; or a module, which is copied without its data.
        device_map: A device map in any form that `DeviceMap.parse` accepts. By default, a factory determines
            the devices itself, and a module is placed on the default device.
        dtype: Floating point dtype of the model. A factory runs with `dtype` as torch's default dtype.
            Tensors created with an explicit dtype (float32 norms, `inv_freq`) keep that dtype, and a note
            counts such parameters. A module is converted with `module.to(dtype)`.
        default_device: Device on which the factory creates tensors before they are placed. Default: the
            device of the map if it has only one, otherwise the topology's default device.
    Returns:
        The model and facts about its construction.
    Raises:
        TypeError: the factory returns something else, or the module cannot be copied. The message is one
            line.
        ValueError: the map does not match the model or the topology, or `dtype` is not a floating point
            dtype.
        DataReadError: the constructor reads a value that cannot be computed.
        UnsupportedSubclassError: a tensor of the model or an example input has an unsupported class.
        Exception: any error of the factory.

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
        with default_dtype(dtype), device if device.type != "cpu" else nullcontext():
            module, inputs = _made(factory)
        args, kwargs = inputs or ((), {})
        inventory = Inventory.of(module)
        for held in inventory.held:
            check_class(held.path, held.tensor)
        register_caches(inventory)
        notes = _real_notes(inventory)
        if foreign := foreign_tensors(inventory, mode):
            if wanted is None and all(slot.path in foreign for slot in inventory.slots):
                # All tensors were created outside of this fake mode, so their devices are not the target's.
                wanted = DeviceMap.parse(usual)
            inventory = Inventory.of(adopt(inventory, recorded, device))
        if dtype is not None and isinstance(factory, nn.Module):
            inventory = Inventory.of(inventory.module.to(dtype))
        if wanted is None:
            placement = placement_as_made(inventory, recorded, device)
        else:
            placement = place(inventory, wanted)
        with recorded.paused():
            target = torch.device(placement.input_device)
            args, kwargs = _as_fakes((args, kwargs), mode, target)
            if wanted is not None:
                args, kwargs = _moved((args, kwargs), device, target)
    forget_cached_fakes()
    notes += _dtype_notes(inventory, dtype)
    seconds = time.perf_counter() - started
    notes += placement.notes
    return FakeModel(
        inventory.module,
        args,
        kwargs,
        mode,
        recorded,
        placement,
        seconds,
        tuple(notes),
        has_inputs=inputs is not None,
    )


def _made(
    factory: Callable[[], Any] | nn.Module,
) -> tuple[nn.Module, tuple[tuple[Any, ...], dict[str, Any]] | None]:
    """Call the factory. Return the module, and the example inputs as (args, kwargs) or None."""
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
        f"a factory must return a module, (module, args) or (module, args, kwargs); this one returned {what}"
    )


def _as_fakes(inputs: Any, mode: FakeTensorMode, target: torch.device) -> Any:
    """Return the example inputs as fake tensors.

    Real inputs cannot be on a virtual device, so they are moved to `target`. The same applies to inputs that
    the factory computed from real tensors.
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
            set_constant_value(made, value)
        return made

    return tree_map(fake, inputs)


def _moved(inputs: Any, default: torch.device, target: torch.device) -> Any:
    """Return the example inputs, with those on the default device moved to `target`."""

    def move(value: Any) -> Any:
        is_there = not isinstance(value, torch.Tensor) or value.device in (target, torch.device("meta"))
        return value if is_there or value.device != default else value.to(target)

    return tree_map(move, inputs)


def _real_notes(inventory: Inventory) -> list[str]:
    real = [
        f"{slot.path} was created with {held_bytes(slot.tensor):,} bytes of real data"
        for slot in inventory.slots
        if not is_fake_tensor(slot.tensor) and slot.tensor.device.type != "meta"
        and held_bytes(slot.tensor) > LARGE_REAL_BYTES
    ]  # fmt: skip
    return real


def _dtype_notes(inventory: Inventory, dtype: torch.dtype | None) -> list[str]:
    """Return a note for each floating point dtype of parameters that differs from the requested one."""
    if dtype is None:
        return []
    others: dict[torch.dtype, list[str]] = {}
    for slot in inventory.slots:
        if slot.is_parameter and slot.tensor.is_floating_point() and slot.tensor.dtype != dtype:
            others.setdefault(slot.tensor.dtype, []).append(slot.path)
    reason = "because the model sets"
    return [
        (
            f"{len(paths)} parameters are {other} instead of {dtype}, {reason} their dtype: {paths[0]}, ..."
            if len(paths) > 1
            else f"the parameter {paths[0]} is {other} instead of {dtype}, {reason} its dtype"
        )
        for other, paths in others.items()
    ]
