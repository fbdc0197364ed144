"""Move the fake tensors of a module to the devices of a device map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import FakeTensor, mode_of, real_to_fake
from fakexport._torch.emulation.wrapper_subclasses import is_wrapper
from fakexport.emulation.devices import Topology
from fakexport.emulation.history import Recording, edit_of, hand_on_value, ignores_default_device, recording

from .module_tensors import Held, Inventory, Slot
from .placement import DeviceMap, Placement, covering_entry, resolve
from .subclasses import UnsupportedSubclassError, changed_inside


def place(
    module: nn.Module | Inventory,
    device_map: str | Mapping[str, Any] | DeviceMap,
    *,
    topology: Topology | None = None,
) -> Placement:
    """Move the parameters and buffers of a fake module to the devices of a map, in place.

    A tied weight stays a single tensor, on the device assigned to its first name. If the map assigns a
    different device to a later name, a note reports this. Recorded values stay available.

    Args:
        module: A module of fake tensors of one fake mode, or its inventory.
        device_map: A device map in any form that `DeviceMap.parse` accepts.
        topology: The existing devices. Default: the emulated topology.
    Raises:
        ValueError: the map does not match the model or the topology. No tensor was moved.

    Example:
        >>> from fakexport.emulation.devices import emulate
        >>> from fakexport.emulation.fake import fake_mode
        >>> with emulate("cpu+H100"), fake_mode():
        ...     mlp = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        ...     place(mlp, {"0": "cpu", "1": "cuda:0"}).tensor_devices["1.weight"]
        'cuda:0'
    """
    inventory = module if isinstance(module, Inventory) else Inventory.of(module)
    entries = resolve(inventory, DeviceMap.parse(device_map), topology)
    wanted = {slot.path: entries[covering_entry(slot.path, entries) or ""] for slot in inventory.slots}
    homes, notes = _homes(inventory.slots, wanted)
    with ExitStack() as stack:
        if (mode := mode_of(slot.tensor for slot in inventory.slots)) is not None:
            stack.enter_context(mode)
            stack.enter_context(stack.enter_context(recording(mode)).paused())
        moved = _Moved()
        for held in inventory.held:
            if id(held.tensor) in homes:
                held.put(moved.to(torch.device(homes[id(held.tensor)]), held))
    tensor_devices = inventory.tensor_devices
    used = _devices_in_use(entries, tensor_devices)
    return Placement(used, tensor_devices, _input_device(inventory, used), notes)


def placement_as_made(inventory: Inventory, recording: Recording, device: torch.device) -> Placement:
    """Return the placement of a module whose factory chose the devices itself.

    Only tensors whose device the code did not choose are moved to the default device: those created by
    `torch.Tensor(n)`, and those computed from NumPy arrays. On a real machine, a user would move them with
    `model.to(device)`.
    """
    with recording.paused():
        for slot in inventory.slots:
            tensor = slot.tensor
            if is_wrapper(tensor) or tensor.device.type != "cpu":
                continue
            if ignores_default_device(tensor):
                _move(tensor, device)
    return Placement({}, inventory.tensor_devices, _input_device(inventory, {"": str(device)}))


def _homes(held: Iterable[Slot], wanted: Mapping[str, str]) -> tuple[dict[int, str], tuple[str, ...]]:
    """Return the device of each tensor by id, and a note for each tied tensor that got two devices."""
    first: dict[int, str] = {}
    notes: list[str] = []
    for slot in held:
        home = first.setdefault(id(slot.tensor), slot.path)
        if wanted[home] != wanted[slot.path]:
            notes.append(
                f"{slot.path} is tied to {home} on {wanted[home]} and stays there, although the "
                f"device map assigns {wanted[slot.path]}"
            )
    return {key: wanted[path] for key, path in first.items()}, tuple(notes)


class _Moved:
    """Moves plain tensors in place, and wrapper subclasses by copying. A tied wrapper is copied only once."""

    def __init__(self) -> None:
        self._wrappers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._inner: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

    def to(self, device: torch.device, held: Held) -> torch.Tensor:
        """Return the tensor on the device: a new tensor for a wrapper subclass, otherwise the same tensor."""
        tensor = held.tensor
        if not is_wrapper(tensor):
            _move(tensor, device)
            return tensor
        if id(tensor) not in self._wrappers:
            self._wrappers[id(tensor)] = (tensor, self._wrapper(device, held.path, tensor))
        return self._wrappers[id(tensor)][1]

    def _wrapper(self, device: torch.device, name: str, tensor: torch.Tensor) -> torch.Tensor:
        # A wrapper stores its own device, so it is recreated from its moved inner tensors.
        made = changed_inside(name, tensor, lambda inner: self._plain(inner, device))
        if made.device != device:
            reason = f"after moving to {device}, it still reports the device {made.device}"
            raise UnsupportedSubclassError.of(name, tensor, reason)
        return made

    def _plain(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the tensor on the device.

        If two wrappers on different devices share an inner tensor, each gets its own copy.
        """
        if tensor.device == device or not isinstance(tensor, FakeTensor):
            return tensor
        if (id(tensor), device) not in self._inner:
            fake = real_to_fake(tensor.fake_mode, tensor, device)
            hand_on_value(tensor, fake)
            self._inner[id(tensor), device] = (tensor, fake)
        return self._inner[id(tensor), device][1]


def _move(tensor: torch.Tensor, device: torch.device) -> None:
    if tensor.device != device and isinstance(tensor, FakeTensor):
        is_as_recorded = edit_of(tensor) is None
        tensor.data = real_to_fake(tensor.fake_mode, tensor, device)
        if is_as_recorded:
            hand_on_value(tensor, tensor)


def _devices_in_use(entries: Mapping[str, str], tensor_devices: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of the device map with the devices that are used.

    If tied weights put all tensors of an entry on a different device, that device is returned.
    """
    found: dict[str, set[str]] = {entry: set() for entry in entries}
    for path, device in tensor_devices.items():
        found[covering_entry(path, entries) or ""].add(device)
    return {entry: min(found[entry]) if len(found[entry]) == 1 else entries[entry] for entry in entries}


def _input_device(inventory: Inventory, entries: Mapping[str, str]) -> str:
    """Return the device for the model's inputs, which is assumed to be the device of a parameter.

    This is the first parameter of a submodule, or the first parameter of the model if its submodules have
    none.
    """
    parameters = [slot for slot in inventory.slots if slot.is_parameter]
    first = next((slot for slot in parameters if "." in slot.path), next(iter(parameters), None))
    return str(first.tensor.device) if first is not None else next(iter(entries.values()), "cpu")
