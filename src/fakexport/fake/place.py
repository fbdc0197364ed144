"""Moving the fake tensors of a module to the devices of a map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from fakexport._torch.fake_tensors import FakeTensor, mode_of, real_to_fake
from fakexport._torch.wrapper_subclasses import is_wrapper
from fakexport.devices import Topology
from fakexport.history import Recording, edit_of, hand_on_value, ignores_default_device, recording

from .module_tensors import Held, Slot, held_tensors, slots
from .placement import DeviceMap, Placement, covering_entry, resolve
from .subclasses import SubclassNotKept, changed_inside


def place(
    module: nn.Module, device_map: str | Mapping[str, Any] | DeviceMap, *, topology: Topology | None = None
) -> Placement:
    """Move the parameters and buffers of a fake module to the devices of a map, in place.

    A tied weight stays one tensor, on the device of the first of its names; the module of another name
    then runs there too, and a note says so. What is known of the tensors' values stays known.

    Args:
        module: A module of fake tensors of one fake mode.
        device_map: What `DeviceMap.parse` takes.
        topology: The devices that there are. Default: those that are emulated.
    Raises:
        ValueError: the map does not fit the model or the topology. Nothing was moved.

    Example:
        >>> from fakexport.devices import emulate
        >>> from fakexport.fake import fake_mode
        >>> with emulate("cpu+H100"), fake_mode():
        ...     mlp = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        ...     place(mlp, {"0": "cpu", "1": "cuda:0"}).tensor_devices["1.weight"]
        'cuda:0'
    """
    entries = resolve(module, DeviceMap.parse(device_map), topology)
    wanted = {slot.path: entries[covering_entry(slot.path, entries) or ""] for slot in slots(module)}
    homes, notes = _homes(slots(module), wanted)
    with ExitStack() as stack:
        if (mode := mode_of(slot.tensor for slot in slots(module))) is not None:
            stack.enter_context(mode)
            stack.enter_context(stack.enter_context(recording(mode)).paused())
        moved = _Moved()
        registered = {id(slot.tensor) for slot in slots(module)}
        for held in held_tensors(module):
            if id(held.tensor) in registered:
                held.put(moved.to(torch.device(homes[id(held.tensor)]), held))
    tensor_devices = {slot.path: str(slot.tensor.device) for slot in slots(module)}
    used = _devices_in_use(entries, tensor_devices)
    return Placement(used, tensor_devices, _input_device(module, used, tensor_devices), notes)


def placement_as_made(module: nn.Module, recording: Recording, device: torch.device) -> Placement:
    """Return where the tensors of a module are, as its factory made them.

    Only what knows no device is moved to the default device: what `torch.Tensor(n)` made, and what was
    computed of arrays of NumPy. A user moves it with `model.to(device)`.
    """
    with recording.paused():
        for slot in slots(module):
            tensor = slot.tensor
            if is_wrapper(tensor) or tensor.device.type != "cpu":
                continue
            if ignores_default_device(tensor):
                _move(tensor, device)
    tensor_devices = {slot.path: str(slot.tensor.device) for slot in slots(module)}
    return Placement({}, tensor_devices, _input_device(module, {"": str(device)}, tensor_devices))


def _homes(held: Iterable[Slot], wanted: Mapping[str, str]) -> tuple[dict[int, str], tuple[str, ...]]:
    """Return the device by identity of the tensor, and a note for each tie that the map pulls apart."""
    first: dict[int, str] = {}
    notes: list[str] = []
    for slot in held:
        home = first.setdefault(id(slot.tensor), slot.path)
        if wanted[home] != wanted[slot.path]:
            notes.append(
                f"{slot.path} is tied to {home} on {wanted[home]} and stays there; the device map says "
                f"{wanted[slot.path]}"
            )
    return {key: wanted[path] for key, path in first.items()}, tuple(notes)


class _Moved:
    """Wrappers on other devices, one for all names of a tied one; plain tensors move in place."""

    def __init__(self) -> None:
        self._wrappers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._inner: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

    def to(self, device: torch.device, held: Held) -> torch.Tensor:
        """Return the tensor on the device: another one for a wrapper, else the same."""
        tensor = held.tensor
        if not is_wrapper(tensor):
            _move(tensor, device)
            return tensor
        if id(tensor) not in self._wrappers:
            self._wrappers[id(tensor)] = (tensor, self._wrapper(device, held.path, tensor))
        return self._wrappers[id(tensor)][1]

    def _wrapper(self, device: torch.device, name: str, tensor: torch.Tensor) -> torch.Tensor:
        # A wrapper says itself where it is: made again, and not changed, it says it of its new parts.
        made = changed_inside(name, tensor, lambda inner: self._plain(inner, device))
        if made.device != device:
            reason = f"moved to {device}, it still reports the device {made.device}"
            raise SubclassNotKept.of(name, tensor, reason)
        return made

    def _plain(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the tensor on the device.

        Two wrappers of one inner tensor on two devices have a copy each.
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
    """Return the entries with their devices.

    Where ties took all tensors of one elsewhere, with that device.
    """
    found: dict[str, set[str]] = {entry: set() for entry in entries}
    for path, device in tensor_devices.items():
        found[covering_entry(path, entries) or ""].add(device)
    return {entry: min(found[entry]) if len(found[entry]) == 1 else entries[entry] for entry in entries}


def _input_device(module: nn.Module, entries: Mapping[str, str], tensor_devices: Mapping[str, str]) -> str:
    """Return the device of what runs first: taken to be the first parameter that a submodule holds."""
    parameters = [slot.path for slot in slots(module) if slot.is_parameter]
    first = next((path for path in parameters if "." in path), next(iter(parameters), None))
    return tensor_devices[first] if first is not None else next(iter(entries.values()), "cpu")
