"""Which device becomes which: for a whole program, or module by module."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from fakexport.error import InvalidType, InvalidValue, first_line
from fakexport.fake import DeviceMap, covering_entry
from fakexport.program.devices import device_of_literal, devices_of_program
from fakexport.program.node_names import module_path
from fakexport.program.walk import walk


@dataclass(frozen=True)
class DeviceMove:
    """Which device becomes which, everywhere.

    Args:
        targets: Old to new, both with an index where they have one: `{"cuda:0": "cpu"}`.
    """

    targets: Mapping[str, str]

    @classmethod
    def parse(cls, device_map: str | Mapping[str, str] | None, present: tuple[str, ...]) -> DeviceMove:
        """Return the move of a program that has these devices.

        Raises:
            ValueError: a device that the program has not, or that no one knows.
        """
        if device_map is None:
            return cls({})
        if isinstance(device_map, str) and "=" in device_map:
            device_map = _read_pairs(device_map)
        if isinstance(device_map, str):
            asked = dict.fromkeys(present, full_name(device_map))
        else:
            asked = {full_name(old): full_name(new) for old, new in device_map.items()}
        if unknown := sorted(asked.keys() - set(present)):
            raise InvalidValue(
                f"the program has nothing on {unknown[0]}: its devices are {', '.join(present)}"
            )
        return cls({old: new for old, new in asked.items() if old != new})

    @property
    def new_devices(self) -> tuple[str, ...]:
        """The devices that something moves to, sorted."""
        return tuple(sorted(set(self.targets.values())))

    def of(self, device: torch.device | str, path: str = "") -> torch.device:
        """Return where a tensor of this device goes."""
        return torch.device(self.targets.get(full_name(device), str(device)))

    def of_literal(self, literal: torch.device | str, path: str = "") -> torch.device | str:
        """Return what a device in the graph becomes.

        Text stays text, and `cuda` without an index stays without.
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
    """Where each module goes; the longest prefix of a path decides.

    A device that is the home of modules (where their weights are) becomes what those modules' home becomes;
    one that is not a home, such as a `cpu` that results are sent to, stays.

    Args:
        entries: Device by module path; `""` is the rest.
        homes: Old device of each entry: that of its weights.
    """

    entries: Mapping[str, str]
    homes: Mapping[str, str]

    @property
    def new_devices(self) -> tuple[str, ...]:
        """The devices that something moves to, sorted."""
        return tuple(sorted(set(self.entries.values())))

    def of(self, device: torch.device | str, path: str = "") -> torch.device:
        """Return where a tensor of this device goes that belongs to the module `path`."""
        entry = covering_entry(path, self.entries)
        old = full_name(device)
        if entry is not None and self.homes.get(entry, old) == old:
            return torch.device(self.entries[entry])
        targets = {self.entries[other] for other, home in self.homes.items() if home == old}
        return torch.device(min(targets)) if len(targets) == 1 else torch.device(old)

    def of_literal(self, literal: torch.device | str, path: str = "") -> torch.device | str:
        """Return what a device in the graph of the module `path` becomes."""
        return _spelled(self.of(literal, path), literal)


Move = DeviceMove | ModuleMove
"What every device of a program becomes."


def parse_move(program: ExportedProgram, device_map: str | Mapping[str, str]) -> Move:
    """Read a map of devices or of module paths; which of the two it is, its keys tell.

    Args:
        program: Not changed.
        device_map: `"cuda:0"` for everything, `{"cpu": "cuda:0"}`, or module paths,
            `{"model.layers.0": "cuda:1", "": "cuda:0"}`; either also as text, `"cpu=cuda:0,cuda:1=cpu"`.
    Raises:
        TypeError: neither text nor a mapping of text.
        ValueError: one line about what does not fit the program.
    """
    if isinstance(device_map, str):
        if "=" not in device_map:
            return DeviceMove.parse(device_map, devices_of_program(program))
        device_map = _read_pairs(device_map)
    if not isinstance(device_map, Mapping):
        raise InvalidType(f"a device map must be a device or a mapping, not {type(device_map).__name__}")
    if not device_map:
        raise InvalidValue("the device map is empty: write, for example, {'cpu': 'cuda:0'}")
    are_devices = {device_of_literal(key) is not None for key in device_map}
    if are_devices == {True}:
        return DeviceMove.parse(device_map, devices_of_program(program))
    if len(are_devices) == 2:
        raise InvalidValue("a device map maps devices or module paths, not both")
    entries = {path: full_name(device) for path, device in DeviceMap.parse(device_map).entries.items()}
    return _module_move(program, entries)


def _read_pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        old, _, new = (piece.strip() for piece in part.partition("="))
        if not new:
            raise InvalidValue(f"device map {text!r}: write FROM=TO pairs, such as cpu=cuda:0")
        if old in pairs:
            raise InvalidValue(f"device map {text!r} names {old!r} twice")
        pairs[old] = new
    return pairs


def _module_move(program: ExportedProgram, entries: Mapping[str, str]) -> ModuleMove:
    paths = set(_paths(program))
    for path in entries:
        if path and path not in paths:
            near = difflib.get_close_matches(path, paths, n=3, cutoff=0.3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise InvalidValue(f"the device map names {path!r}, which is not a module of the program{hint}")
    counts: dict[str, Counter[str]] = {}
    for name, tensor in program.state_dict.items():
        entry = covering_entry(name, entries)
        if entry is None:
            raise InvalidValue(f"the device map has no entry for {name}: add an entry '' for the rest")
        counts.setdefault(entry, Counter())[str(tensor.device)] += 1
    for entry, found in counts.items():
        if len(found) > 1:
            raise InvalidValue(
                f"the weights of {entry or 'the rest'!r} are on {' and '.join(sorted(found))}: "
                "name its modules one by one, or map devices"
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
    """Return torch's name of a device, with the index 0 where an accelerator has none.

    Raises:
        ValueError: no one knows such a device. One line.
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
