"""Device maps, which assign modules to devices."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fakexport._torch.emulation.wrapper_subclasses import held_bytes
from fakexport.emulation.devices import Topology, emulated_topology
from fakexport.error import InvalidValue
from fakexport.files import read_file
from fakexport.files.documents import DocumentError, parse_json

from .module_tensors import Inventory, slots, tensor_slots

BALANCED = "balanced"
_MOST_BYTES = 16 << 20

Device = str | int | torch.device


@dataclass(frozen=True)
class DeviceMap:
    """A map from module paths to devices, as in accelerate. The longest matching prefix applies.

    Args:
        entries: Device by module path (or full name of a parameter or buffer). The path `""` matches
            everything else. For `balanced`, the mapping is empty, because the entries depend on the model.
    """

    entries: Mapping[str, str]

    @classmethod
    def parse(cls, spec: Device | Path | Mapping[str, Device] | DeviceMap) -> DeviceMap:
        """Parse a device map.

        Args:
            spec: A device (`"cuda:0"`, 0, `torch.device("cuda")`), `"balanced"`, a mapping
                (`{"model.embed": "cpu", "": "cuda:0"}`), text (`"fc1=cpu,fc2=cuda:0"`), or the path of a
                JSON file with such a mapping. A number n means `cuda:n`.
        Returns:
            The map. Devices without an index get index 0.
        Raises:
            ValueError: the map is empty, a device is missing or invalid, a path is repeated, or a JSON file
                is invalid, larger than 16 MiB, or cannot be read. The message is a single line.

        Example:
            >>> dict(DeviceMap.parse("fc1=cpu,fc2=cuda").entries)
            {'fc1': 'cpu', 'fc2': 'cuda:0'}
        """
        if isinstance(spec, DeviceMap):
            return spec
        if isinstance(spec, Mapping):
            if not spec:
                raise InvalidValue("device map is empty: write {'': 'cuda:0'} for a single device")
            return cls({path: _device_name(d, path) for path, d in spec.items()})
        text = str(spec).strip()
        if isinstance(spec, Path) or text.endswith(".json"):
            return cls.parse(_read_json(Path(text)))
        if text == BALANCED:
            return cls({})
        if "=" in text:
            return cls.parse(read_pairs(text, "'module=device'"))
        return cls({"": _device_name(spec, "")})

    @property
    def is_balanced(self) -> bool:
        """Whether the entries depend on the model and the topology."""
        return not self.entries

    @property
    def only_device(self) -> str | None:
        """The device if the map has only one, otherwise None."""
        devices = set(self.entries.values())
        return devices.pop() if len(devices) == 1 else None


@dataclass(frozen=True)
class Placement:
    """The devices of one model's tensors.

    Args:
        device_map: The device map that was applied, by module path. Every path exists in the model.
        tensor_devices: Device of each parameter and buffer by full name. The names of a tied tensor have the
            same device.
        input_device: Device on which the model expects its inputs: that of the first module to run.
        notes: Sentences about entries that could not be applied, because a tied tensor is assigned to two
            devices.
    """

    device_map: Mapping[str, str]
    tensor_devices: Mapping[str, str]
    input_device: str
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The distinct devices of the map, in order."""
        return tuple(dict.fromkeys(self.device_map.values()))


def resolve(inventory: Inventory, device_map: DeviceMap, topology: Topology | None = None) -> dict[str, str]:
    """Return the entries of a device map for a given model, in the order of its modules.

    Raises:
        ValueError: a path matches no module (the message names the closest ones), a tensor has no entry, or a
            device does not exist in the topology. The message is a single line.
    """
    if device_map.is_balanced:
        return balanced_map(inventory, topology or emulated_topology())
    topology = topology or emulated_topology()
    for device in dict.fromkeys(device_map.entries.values()):
        check_device(device, topology)
    check_paths(device_map.entries, inventory.paths, type(inventory.module).__name__)
    _check_cover(inventory, device_map.entries)
    order = {path: place for place, path in enumerate(inventory.paths)}
    return dict(sorted(device_map.entries.items(), key=lambda entry: order[entry[0]]))


def check_device(device: str, topology: Topology | None) -> None:
    """Raise ValueError if the device does not exist. The message is a single line."""
    if topology is not None:
        topology.device(device)
    elif (kind := torch.device(device).type) != "cpu" and not torch.get_device_module(kind).is_available():
        raise InvalidValue(f"device {device!r} does not exist: no topology is emulated")


def covering_entry(path: str, entries: Container[str]) -> str | None:
    """Return the entry that applies to a path: the path itself, or its longest prefix of whole components.

    If no entry matches, return None.
    """
    while path not in entries:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return path


def check_paths(entries: Iterable[str], paths: Collection[str], owner: str) -> None:
    """Raise `ValueError` if an entry of a device map is not one of the module paths of `owner`."""
    for path in entries:
        if path not in paths:
            near = difflib.get_close_matches(path, paths, n=3, cutoff=0.3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise InvalidValue(f"device map names {path!r}, which is not a module of {owner}{hint}")


def _check_cover(inventory: Inventory, entries: Mapping[str, str]) -> None:
    missing = [slot.path for slot in inventory.slots if covering_entry(slot.path, entries) is None]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InvalidValue(
            f"the device map has no entry for {missing[0]}{more}: add one, or an entry '' for all other "
            "modules"
        )


def _device_name(device: Device, path: str) -> str:
    """Return torch's full name of a device: `cuda:0` for `cuda`, 0 or `torch.device("cuda")`."""
    where = f" for {path!r}" if path else ""
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise InvalidValue(f"invalid device in device map{where}: expected a device, got {device!r}")
    text = str(device).strip()
    text = f"cuda:{text}" if text.isdecimal() else text
    try:
        parsed = torch.device(text)
    except RuntimeError:
        expected = "a device such as 'cpu' or 'cuda:0'"
        raise InvalidValue(f"invalid device in device map{where}: {text!r}; expected {expected}") from None
    if parsed.type in ("cpu", "meta"):
        return parsed.type
    return f"{parsed.type}:{parsed.index or 0}"


def read_pairs(text: str, form: str) -> dict[str, str]:
    """Parse a device map such as `a=cpu,b=cuda:0`. `form` describes a pair in the error.

    Raises:
        ValueError: A part of the text is not a pair, or a path occurs twice.
    """
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        path, _, device = (piece.strip() for piece in part.partition("="))
        if not device:
            raise InvalidValue(f"device map {text!r}: expected {form}, got {part!r}")
        if path in pairs:
            raise InvalidValue(f"device map {text!r} contains {path!r} twice")
        pairs[path] = device
    return pairs


def _read_json(path: Path) -> dict[str, Device]:
    try:
        value = parse_json(read_file(path, most_bytes=_MOST_BYTES))
    except DocumentError as error:
        raise InvalidValue(f"device map {path}: invalid JSON: {error}") from None
    except OSError as error:
        raise InvalidValue(f"device map {path}: {error.strerror or error}") from error
    if not isinstance(value, dict) or not value:
        raise InvalidValue(
            f"device map {path}: expected a nonempty JSON object that maps module paths to devices"
        )
    return value


_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


@dataclass(frozen=True)
class _Unit:
    """A part of the model that must be on one device."""

    path: str
    parameter_ids: frozenset[int]
    bytes_: int


def balanced_map(inventory: Inventory, topology: Topology | None) -> dict[str, str]:
    """Distribute the modules over the devices in order, in proportion to the devices' memory.

    Modules without parameters (rotary embeddings) are placed on the first device. Modules that share a
    parameter are placed on one device, at the position of the first of these modules, because an operator
    needs its weights on one device. The host is used only if there is no accelerator.

    Returns:
        The device by module path.
    """
    devices = [(d.name, d.profile.memory_bytes or 1) for d in topology.accelerators] if topology else []
    if len(devices) < 2:
        return {"": devices[0][0] if devices else "cpu"}
    units = list(_units(inventory, len(devices)))
    groups = _tied(units)
    group_bytes = Counter[int]()
    for unit, group in zip(units, groups, strict=True):
        group_bytes[group] += unit.bytes_
    bounds = _upper_bounds([memory for _, memory in devices], group_bytes.total())
    device_of: dict[int, str] = {}
    start = 0.0
    for group, size in group_bytes.items():
        middle = start + size / 2
        place = next((i for i, bound in enumerate(bounds) if middle < bound), len(devices) - 1)
        device_of[group] = devices[place if units[group].parameter_ids else 0][0]
        start += size
    return {unit.path: device_of[group] for unit, group in zip(units, groups, strict=True)}


def _tied(units: Sequence[_Unit]) -> list[int]:
    """Group units that share a parameter, even indirectly.

    Returns:
        For each unit, the index of the first unit in its group.
    """
    groups = list(range(len(units)))
    owners: dict[int, int] = {}
    for index, unit in enumerate(units):
        joined = {index, *(groups[owners.setdefault(key, index)] for key in unit.parameter_ids)}
        if len(joined) > 1:
            first = min(joined)
            groups = [first if group in joined else group for group in groups]
    return groups


def _upper_bounds(memories: list[int], total: int) -> list[float]:
    bounds, passed = [], 0
    for memory in memories:
        passed += memory
        bounds.append(total * passed / sum(memories))
    return bounds


def _units(inventory: Inventory, device_count: int) -> Iterator[_Unit]:
    whole = {name for _, m in inventory.parts for name in getattr(m, "_no_split_modules", None) or ()}
    bytes_of = _bytes_by_path(inventory)
    counted: set[int] = set()
    share = bytes_of[""] / device_count

    def visit(path: str, part: nn.Module, is_block: bool) -> Iterator[_Unit]:
        children = [(f"{path}.{name}" if path else name, child) for name, child in part.named_children()]
        full = sum(bytes_of[child_path] > 0 for child_path, _ in children)
        is_split = type(part).__name__ not in whole and full > 0
        if is_split and bytes_of[path] <= share:
            is_split = not is_block and any(isinstance(m, _LISTS) and len(m) > 1 for m in part.modules())
        held = list(tensor_slots("", part) if is_split else slots(part))
        if held:
            yield unit(path, [slot.tensor for slot in held if slot.is_parameter])
        if is_split:
            makes_blocks = isinstance(part, _LISTS) and full > 1
            for child_path, child in children:
                yield from visit(child_path, child, is_block or makes_blocks)

    def unit(path: str, tensors: list[torch.Tensor]) -> _Unit:
        fresh = {id(t): t for t in tensors if id(t) not in counted}
        counted.update(fresh)
        return _Unit(path, frozenset(map(id, tensors)), sum(map(held_bytes, fresh.values())))

    yield from visit("", inventory.module, is_block=False)


def _bytes_by_path(inventory: Inventory) -> Counter[str]:
    """Return the bytes of the parameters of each module and its submodules, by path.

    Within a module, a tied parameter counts once.
    """
    found = Counter[str]()
    counted: set[tuple[str, int]] = set()
    for slot in inventory.slots:
        path = slot.path if slot.is_parameter else ""
        while path:
            path = path.rpartition(".")[0]
            if (path, id(slot.tensor)) not in counted:
                counted.add((path, id(slot.tensor)))
                found[path] += held_bytes(slot.tensor)
    return found
