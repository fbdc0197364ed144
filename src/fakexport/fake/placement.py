"""Which device each module of a model is on: device maps, and what they mean for a given model."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fakexport._torch.wrapper_subclasses import held_bytes
from fakexport.devices import Topology, emulated_topology
from fakexport.documents import DocumentError, parse_json
from fakexport.error import InvalidValue
from fakexport.files import read_file

from .module_tensors import slots, tensor_slots

BALANCED = "balanced"
_MOST_BYTES = 16 << 20

Device = str | int | torch.device


@dataclass(frozen=True)
class DeviceMap:
    """Module path -> device, as in accelerate; the longest prefix of a name decides.

    Args:
        entries: Device by module path (or full name of a parameter or buffer). The path `""` is the rest.
            Empty for `balanced`, whose entries depend on the model.
        spec: The text or mapping that it came from, as text.
    """

    entries: Mapping[str, str]
    spec: str

    @classmethod
    def parse(cls, spec: Device | Path | Mapping[str, Device] | DeviceMap) -> DeviceMap:
        """Read a device map.

        Args:
            spec: A device (`"cuda:0"`, 0, `torch.device("cuda")`), `"balanced"`, a mapping
                (`{"model.embed": "cpu", "": "cuda:0"}`), text (`"fc1=cpu,fc2=cuda:0"`), or the path of a
                JSON file with such a mapping. A number n means the n-th device, `cuda:n`.
        Returns:
            The map. Devices without an index get index 0.
        Raises:
            ValueError: no device, an empty or repeated path, broken JSON. One line.
            OSError: the JSON file does not exist, or is not a regular file of at most 16 MiB.

        Example:
            >>> dict(DeviceMap.parse("fc1=cpu,fc2=cuda").entries)
            {'fc1': 'cpu', 'fc2': 'cuda:0'}
        """
        if isinstance(spec, DeviceMap):
            return spec
        if isinstance(spec, Mapping):
            if not spec:
                raise InvalidValue("device map is empty: write {'': 'cuda:0'} for one device")
            return cls({path: _device_name(d, path) for path, d in spec.items()}, _as_text(spec.items()))
        text = str(spec).strip()
        if isinstance(spec, Path) or text.endswith(".json"):
            return cls.parse(_read_json(Path(text)))
        if text == BALANCED:
            return cls({}, BALANCED)
        if "=" in text:
            return cls.parse(_read_pairs(text))
        return cls({"": _device_name(spec, "")}, text)

    @property
    def is_balanced(self) -> bool:
        """Whether the entries are to be chosen for the model and the topology."""
        return not self.entries

    @property
    def only_device(self) -> str | None:
        """The device, if everything is on one."""
        devices = set(self.entries.values())
        return devices.pop() if len(devices) == 1 else None


@dataclass(frozen=True)
class Placement:
    """Where the tensors of one model are.

    Args:
        device_map: Device by module path, as used: every path exists in the model.
        tensor_devices: Device of each parameter and buffer by full name; tied names have one device.
        input_device: Where the inputs of the model are expected: the device of what runs first.
        notes: Sentences about what the map could not do, such as a tie over two devices.
    """

    device_map: Mapping[str, str]
    tensor_devices: Mapping[str, str]
    input_device: str
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the map, each once, in the order of the map."""
        return tuple(dict.fromkeys(self.device_map.values()))

    def device_of(self, path: str) -> str:
        """Return the device of a module or tensor by the longest prefix of its path.

        Raises:
            KeyError: no entry covers it.
        """
        return self.device_map[covering_entry(path, self.device_map) or path]


def resolve(module: nn.Module, device_map: DeviceMap, topology: Topology | None = None) -> dict[str, str]:
    """Return the entries of a device map for a given model, in the order of its modules.

    Args:
        module: The model.
        device_map: A parsed map.
        topology: The devices that there are. Default: those that are emulated, else the real ones.
    Raises:
        ValueError: a path names no module (with the nearest), a tensor is not covered, a device does not
            exist in the topology. One line.
    """
    if device_map.is_balanced:
        return balanced_map(module, topology or emulated_topology())
    topology = topology or emulated_topology()
    for device in dict.fromkeys(device_map.entries.values()):
        check_device(device, topology)
    _check_paths(module, device_map.entries)
    _check_cover(module, device_map.entries)
    order = {path: place for place, path in enumerate(_paths(module))}
    return dict(sorted(device_map.entries.items(), key=lambda entry: order[entry[0]]))


def check_device(device: str, topology: Topology | None) -> None:
    """Raise ValueError, in one line, if there is no such device.

    Args:
        device: torch's name of a device, with its index.
        topology: The devices that there are. None means the real ones.
    """
    if topology is not None:
        topology.device(device)
    elif (kind := torch.device(device).type) != "cpu" and not torch.get_device_module(kind).is_available():
        raise InvalidValue(f"there is no device {device!r}: no topology is emulated")


def covering_entry(path: str, entries: Container[str]) -> str | None:
    """Return the entry that decides for a path: itself, or the longest prefix in whole parts.

    None if none does.
    """
    while path not in entries:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return path


def _check_paths(module: nn.Module, entries: Iterable[str]) -> None:
    paths = _paths(module)
    for path in entries:
        if path not in paths:
            near = difflib.get_close_matches(path, paths, n=3, cutoff=0.3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            what = f"which is not a module of {type(module).__name__}"
            raise InvalidValue(f"device map names {path!r}, {what}{hint}")


def _check_cover(module: nn.Module, entries: Mapping[str, str]) -> None:
    missing = [slot.path for slot in slots(module) if covering_entry(slot.path, entries) is None]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InvalidValue(f"device map has no entry for {missing[0]}{more}: add an entry '' for the rest")


def _paths(module: nn.Module) -> dict[str, None]:
    modules = dict.fromkeys(path for path, _ in module.named_modules(remove_duplicate=False))
    return modules | dict.fromkeys(slot.path for slot in slots(module))


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


def _read_pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        path, equals, device = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InvalidValue(f"device map {text!r}: write 'module=device', got {part!r}")
        if path in pairs:
            raise InvalidValue(f"device map {text!r} names {path!r} twice")
        pairs[path] = device
    return pairs


def _read_json(path: Path) -> dict[str, Device]:
    try:
        value = parse_json(read_file(path, most_bytes=_MOST_BYTES))
    except DocumentError as error:
        raise InvalidValue(f"device map {path}: broken JSON: {error}") from None
    if not isinstance(value, dict) or not value:
        raise InvalidValue(f"device map {path}: expected an object of module path -> device")
    return value


def _as_text(items: Iterable[tuple[str, object]]) -> str:
    return ",".join(f"{path}={device}" for path, device in items)


_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


@dataclass(frozen=True)
class _Unit:
    """A part of the model that stays on one device."""

    path: str
    parameter_ids: frozenset[int]
    bytes_: int


def balanced_map(module: nn.Module, topology: Topology | None) -> dict[str, str]:
    """Return the device by module path: blocks in the order of the model, in shares of the devices' memory.

    Modules without parameters (rotary embeddings) are on the first device. Modules that share a parameter are
    together, where the first of them is: an operator takes its weights from one device. The host is used only
    where it is the only device.
    """
    devices = [(d.name, d.profile.memory_bytes or 1) for d in topology.accelerators] if topology else []
    if len(devices) < 2:
        return {"": devices[0][0] if devices else "cpu"}
    units = list(_units(module, len(devices)))
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
    """Return for each unit the first one that it shares a parameter with, directly or over others."""
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


def _units(module: nn.Module, device_count: int) -> Iterator[_Unit]:
    whole = {name for m in module.modules() for name in getattr(m, "_no_split_modules", None) or ()}
    counted: set[int] = set()
    share = _bytes(module) / device_count

    def visit(path: str, part: nn.Module, is_block: bool) -> Iterator[_Unit]:
        is_split = _is_split(part, is_block, whole, share)
        held = list(tensor_slots("", part) if is_split else slots(part))
        if held:
            yield unit(path, [slot.tensor for slot in held if slot.is_parameter])
        if not is_split:
            return
        makes_blocks = isinstance(part, _LISTS) and sum(_bytes(child) > 0 for child in part.children()) > 1
        for name, child in part.named_children():
            yield from visit(f"{path}.{name}" if path else name, child, is_block or makes_blocks)

    def unit(path: str, tensors: list[torch.Tensor]) -> _Unit:
        fresh = {id(t): t for t in tensors if id(t) not in counted}
        counted.update(fresh)
        return _Unit(path, frozenset(map(id, tensors)), sum(map(held_bytes, fresh.values())))

    yield from visit("", module, is_block=False)


def _is_split(part: nn.Module, is_block: bool, whole: set[str], share: float) -> bool:
    """Return whether the children of a module may be on different devices."""
    if type(part).__name__ in whole or not any(_bytes(child) for child in part.children()):
        return False
    if _bytes(part) > share:
        return True
    return not is_block and any(isinstance(m, _LISTS) and len(m) > 1 for m in part.modules())


def _bytes(part: nn.Module) -> int:
    tensors = {id(slot.tensor): slot.tensor for slot in slots(part) if slot.is_parameter}
    return sum(map(held_bytes, tensors.values()))
