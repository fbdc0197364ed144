"""Mappings from old to new devices, for a whole program or per module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from fakexport.emulation.fake import DeviceMap, check_paths, covering_entry, read_pairs
from fakexport.error import InvalidType, InvalidValue, first_line
from fakexport.exporting.program.devices import device_of_literal, devices_of_program
from fakexport.exporting.program.node_names import module_path
from fakexport.exporting.program.walk import walk


@dataclass(frozen=True)
class DeviceMove:
    """A mapping from old to new devices that applies to the whole program.

    Args:
        targets: New device by old device, such as `{"cuda:0": "cpu"}`. Accelerators have an index.
    """

    targets: Mapping[str, str]

    @classmethod
    def parse(cls, device_map: str | Mapping[str, str] | None, present: tuple[str, ...]) -> DeviceMove:
        """Parse the device map for a program that uses the devices `present`.

        Raises:
            ValueError: a device is unknown, or the program does not use it.
        """
        if device_map is None:
            return cls({})
        if isinstance(device_map, str) and "=" in device_map:
            device_map = read_pairs(device_map, "FROM=TO, such as cpu=cuda:0")
        if isinstance(device_map, str):
            asked = dict.fromkeys(present, full_name(device_map))
        else:
            asked = {full_name(old): full_name(new) for old, new in device_map.items()}
        if unknown := sorted(asked.keys() - set(present)):
            raise InvalidValue(f"the program does not use {unknown[0]}; its devices are {', '.join(present)}")
        return cls({old: new for old, new in asked.items() if old != new})

    @property
    def new_devices(self) -> tuple[str, ...]:
        """The new devices, sorted."""
        return tuple(sorted(set(self.targets.values())))

    def of(self, device: torch.device | str, path: str = "") -> torch.device:
        """Return the new device of a tensor."""
        return torch.device(self.targets.get(full_name(device), str(device)))

    def of_literal(self, literal: torch.device | str, path: str = "") -> torch.device | str:
        """Return the replacement of a device in the graph.

        Strings remain strings, and devices without an index, such as `cuda`, remain without an index.
        """
        wanted = torch.device(literal)
        if str(wanted) in self.targets or wanted.index is not None or wanted.type == "cpu":
            moved = self.of(wanted)
        else:  # The current device of a type.
            targets = {new for old, new in self.targets.items() if torch.device(old).type == wanted.type}
            moved = torch.device(min(targets)) if targets else wanted
        return _spelled(moved, literal)


@dataclass(frozen=True)
class ModuleMove:
    """A mapping from modules to new devices. The longest matching prefix of a path applies.

    If weights of these modules are on a device, the modules' new device replaces that device. A device
    without weights is kept, such as a `cpu` to which results are moved.

    Args:
        entries: New device by module path. `""` matches all other modules.
        homes: Old device of each entry, that is, the device of its weights.
    """

    entries: Mapping[str, str]
    homes: Mapping[str, str]

    @property
    def new_devices(self) -> tuple[str, ...]:
        """The new devices, sorted."""
        return tuple(sorted(set(self.entries.values())))

    def of(self, device: torch.device | str, path: str = "") -> torch.device:
        """Return the new device of a tensor in the module `path`."""
        entry = covering_entry(path, self.entries)
        old = full_name(device)
        if entry is not None and self.homes.get(entry, old) == old:
            return torch.device(self.entries[entry])
        targets = {self.entries[other] for other, home in self.homes.items() if home == old}
        return torch.device(min(targets)) if len(targets) == 1 else torch.device(old)

    def of_literal(self, literal: torch.device | str, path: str = "") -> torch.device | str:
        """Return the replacement of a device in the graph of the module `path`."""
        return _spelled(self.of(literal, path), literal)


Move = DeviceMove | ModuleMove
"""The replacements of all devices in a program."""


def parse_move(program: ExportedProgram, device_map: str | Mapping[str, str]) -> Move:
    """Parse a device map. Its keys can be old devices or module paths.

    Args:
        program: The program. It is not changed.
        device_map: `"cuda:0"` for everything, `{"cpu": "cuda:0"}`, or `{"model.layers.0": "cuda:1", "":
            "cuda:0"}`. Mappings can also be text: `"cpu=cuda:0,cuda:1=cpu"`.
    Raises:
        TypeError: the map is neither a string nor a mapping of strings.
        ValueError: the map does not match the program. The message is a single line.
    """
    if isinstance(device_map, str):
        if "=" not in device_map:
            return DeviceMove.parse(device_map, devices_of_program(program))
        device_map = read_pairs(device_map, "FROM=TO, such as cpu=cuda:0")
    if not isinstance(device_map, Mapping):
        raise InvalidType(f"a device map must be a device or a mapping, not {type(device_map).__name__}")
    if not device_map:
        raise InvalidValue("the device map is empty: write, for example, {'cpu': 'cuda:0'}")
    are_devices = {device_of_literal(key) is not None for key in device_map}
    if are_devices == {True}:
        return DeviceMove.parse(device_map, devices_of_program(program))
    if len(are_devices) == 2:
        raise InvalidValue("a device map must contain either devices or module paths, not both")
    entries = {path: full_name(device) for path, device in DeviceMap.parse(device_map).entries.items()}
    return _module_move(program, entries)


def _module_move(program: ExportedProgram, entries: Mapping[str, str]) -> ModuleMove:
    check_paths(filter(None, entries), set(_paths(program)), "the program")
    counts: dict[str, Counter[str]] = {}
    for name, tensor in program.state_dict.items():
        entry = covering_entry(name, entries)
        if entry is None:
            raise InvalidValue(
                f"the device map has no entry for {name}: add one, or an entry '' for all other modules"
            )
        counts.setdefault(entry, Counter())[str(tensor.device)] += 1
    for entry, found in counts.items():
        if len(found) > 1:
            raise InvalidValue(
                f"the weights that the device map entry {entry!r} covers are on "
                f"{' and '.join(sorted(found))}: add an entry for each module, or map devices to devices"
            )
    homes = {entry: next(iter(found)) for entry, found in counts.items()}
    return ModuleMove(dict(entries), homes)


def _paths(program: ExportedProgram) -> Iterable[str]:
    names = [*program.state_dict, *(module_path(visit.node) for visit in walk(program))]
    for name in dict.fromkeys(names):
        while name:
            yield name
            name = name.rpartition(".")[0]


def full_name(device: torch.device | str) -> str:
    """Return torch's name of a device. An accelerator without an index gets index 0.

    Raises:
        ValueError: the device is unknown. The message is a single line.
    """
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise InvalidValue(f"unknown device {str(device)!r}: {first_line(error)}") from None
    if found.type not in ("cpu", "meta") and found.index is None:
        found = torch.device(found.type, 0)
    return found.type if found.type in ("cpu", "meta") else str(found)


def _spelled(moved: torch.device, literal: torch.device | str) -> torch.device | str:
    if not isinstance(literal, str):
        return moved
    return moved.type if torch.device(literal).index is None else str(moved)
