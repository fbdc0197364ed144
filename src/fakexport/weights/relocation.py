"""A program on other devices: a copy in which every device is replaced."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fakexport._torch.fake_tensors import FakeTensor
from fakexport._torch.pytree import tree_map
from fakexport.devices import emulated_topology
from fakexport.program.devices import device_of_literal

__all__ = ["DeviceMove", "copied_graph", "devices_of_program", "exists_here", "relocate"]


def devices_of_program(program: ExportedProgram) -> tuple[str, ...]:
    """The devices of weights, constants and values, sorted."""
    tensors = [*program.state_dict.values(), *program.constants.values()]
    values = [
        node.meta.get("val") for module in _graph_modules(program.graph_module) for node in module.graph.nodes
    ]
    found: set[str] = set()

    def note(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found.add(str(value.device))
        return value

    tree_map(note, [tensors, values])
    return tuple(sorted(found))


def exists_here(device: str) -> bool:
    """Whether this process can put data on a device; an emulated device takes none."""
    wanted = torch.device(device)
    if wanted.type in ("cpu", "meta"):
        return wanted.type == "cpu"
    if emulated_topology() is not None:
        return False
    module = getattr(torch, wanted.type, None)
    return bool(module is not None and module.is_available() and (wanted.index or 0) < module.device_count())


@dataclass(frozen=True)
class DeviceMove:
    """Which device becomes which.

    Args:
        targets: Old to new, both with an index where they have one: `{"cuda:0": "cpu"}`.
    """

    targets: Mapping[str, str]

    @classmethod
    def parse(cls, device_map: str | Mapping[str, str] | None, present: tuple[str, ...]) -> DeviceMove:
        """The move of a program that has these devices.

        Raises:
            ValueError: a device that the program has not, or that nobody knows.
        """
        if device_map is None:
            return cls({})
        try:
            asked = (
                dict.fromkeys(present, _plain(device_map))
                if isinstance(device_map, str)
                else {_plain(old): _plain(new) for old, new in device_map.items()}
            )
        except RuntimeError as error:
            raise ValueError(f"device_map: {str(error).splitlines()[0]}") from error
        if unknown := sorted(asked.keys() - set(present)):
            raise ValueError(f"the program has nothing on {unknown[0]}: its devices are {', '.join(present)}")
        return cls({old: new for old, new in asked.items() if old != new})

    def of(self, device: torch.device | str) -> torch.device:
        """Where a tensor of this device goes."""
        return torch.device(self.targets.get(_plain(device), str(device)))

    def of_literal(self, literal: torch.device | str) -> torch.device | str:
        """What a device in the graph becomes; text stays text, and `cuda` without an index stays without."""
        wanted = torch.device(literal)
        if str(wanted) in self.targets or wanted.index is not None or wanted.type == "cpu":
            moved = self.of(wanted)
        else:  # The current device of a type.
            targets = {new for old, new in self.targets.items() if torch.device(old).type == wanted.type}
            moved = torch.device(min(targets)) if targets else wanted
        if not isinstance(literal, str):
            return moved
        return moved.type if wanted.index is None else str(moved)


def copied_graph(program: ExportedProgram) -> GraphModule:
    """A copy of the graph and of its subgraphs; the values noted at its nodes are shared."""
    copied = copy.deepcopy(program.graph_module)
    assert isinstance(copied, GraphModule)
    for old, new in zip(_graph_modules(program.graph_module), _graph_modules(copied), strict=True):
        # A copy renames what has the name of a Python builtin: `input`, as torch.nn.Linear calls its input.
        for node, twin in zip(old.graph.nodes, new.graph.nodes, strict=True):
            twin.name = node.name
    return copied


def relocate(graph_module: GraphModule, move: DeviceMove) -> None:
    """Replaces devices in place: in arguments, by keyword or position or as text, and in noted values.

    `torch.export.passes.move_to_device_pass` (2.13) leaves out positions, autocast regions and custom
    operators, and cannot move fakes of a device that is not there.
    """
    if not move.targets:
        return
    moved: dict[int, Any] = {}
    for module in _graph_modules(graph_module):
        for node in module.graph.nodes:
            if node.op == "call_function":
                node.args = _replaced(node.args, move)
                node.kwargs = _replaced(node.kwargs, move)
            _move_value(node, move, moved)
        module.recompile()


def _graph_modules(root: GraphModule) -> Iterator[GraphModule]:
    return (module for module in root.modules() if isinstance(module, GraphModule))


def _replaced(value: Any, move: DeviceMove) -> Any:
    if device_of_literal(value) is not None:
        return move.of_literal(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(item, move) for item in value)
    if isinstance(value, dict):
        return {key: _replaced(item, move) for key, item in value.items()}
    return value


def _move_value(node: Node, move: DeviceMove, moved: dict[int, Any]) -> None:
    def relocated(value: Any) -> Any:
        if not isinstance(value, FakeTensor) or move.of(value.device) == value.device:
            return value
        if id(value) not in moved:
            moved[id(value)] = (_fake_on(value, move.of(value.device)), value)
        return moved[id(value)][0]

    if "val" in node.meta:
        node.meta["val"] = tree_map(relocated, node.meta["val"])


def _fake_on(fake: FakeTensor, device: torch.device) -> torch.Tensor:
    if fake.layout is not torch.strided:
        return fake
    with fake.fake_mode:
        made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=device)
    made.requires_grad_(fake.requires_grad)
    made.constant = fake.constant  # type: ignore[attr-defined]
    return made


def _plain(device: torch.device | str) -> str:
    found = torch.device(device)
    if found.type not in ("cpu", "meta") and found.index is None:
        found = torch.device(found.type, 0)
    return str(found)
