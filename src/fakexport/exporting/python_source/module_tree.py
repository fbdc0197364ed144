"""The modules of a program with their weights and constants."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

from fakexport.emulation.history import constant_value
from fakexport.exporting.program import has_value, input_nodes, names_by_tensor

from .literal_text import PythonSourceError, quoted
from .names import Names, base_name, identifier, is_free_on_module, is_plain_attribute
from .regions import Region, regions_of

# Export numbers literals across the program, so identical blocks would have different names.
_LITERAL = re.compile(r"_?(lifted_tensor|tensor_constant)_?\d+")
_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(eq=False)
class Entry:
    """A tensor that a module holds.

    Args:
        place: The tensor's path in the generated file: `model.layers.0.mlp.fc1.weight`.
        tensor: The program's tensor, fake or real.
        kind: `parameter`, `buffer` (in the state dict), or `constant` (not in the state dict).
        value: Value of a constant, on the CPU. None if it is unknown.
    """

    place: str
    tensor: torch.Tensor
    kind: str
    value: torch.Tensor | None = None

    @property
    def attribute(self) -> str:
        """Name of the attribute on the module."""
        return self.place.rpartition(".")[2]


@dataclass(eq=False)
class ModuleNode:
    """A module with its children, its tensors and the operations that it runs itself.

    Args:
        path: Path of the module, such as `model.layers.0`, or "" for the root.
    """

    path: str
    children: dict[str, ModuleNode] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """Name of the module's original class, or "" if no operation records it. The text is untrusted."""
        return self.regions[0].call.kind if self.regions else ""

    @property
    def layout(self) -> str:
        """How the children are accessed: `list` by index, `dict` by key, or `attributes`."""
        names = list(self.children)
        if not names or not all(name.isdecimal() and name.isascii() for name in names):
            return "attributes"
        return "list" if names == [str(index) for index in range(len(names))] else "dict"

    @property
    def is_container(self) -> bool:
        """Whether the module only contains other modules, like a `ModuleList`."""
        return self.path != "" and self.layout != "attributes" and not (self.entries or self.regions)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the module's attributes that are not methods."""
        return (*self.children, *(entry.attribute for entry in self.entries))

    def reach(self, relative: str) -> str:
        """Return an expression for a module or tensor below this one, such as `self.layers[0].fc.weight`."""
        text, node = "self", self
        for part in relative.split("."):
            layout = node.layout if part in node.children else "attributes"
            if layout == "attributes":
                text = f"{text}.{part}" if is_plain_attribute(part) else f"getattr({text}, {quoted(part)})"
            else:
                text = f"{text}[{part if layout == 'list' else quoted(part)}]"
            node = node.children.get(part) or ModuleNode("")
        return text

    def walk(self) -> Iterator[ModuleNode]:
        """Yield all modules below this one, children before parents, and then this module."""
        for child in self.children.values():
            yield from child.walk()
        yield self


@dataclass(frozen=True)
class ModuleTree:
    """All modules of a program.

    Args:
        root: The module that represents the program itself.
        places: For each placeholder, all paths of its tensor.
        ties: Groups of paths that refer to one tied tensor. The tensor is created at the first path.
    """

    root: ModuleNode
    places: Mapping[Node, Sequence[str]]
    ties: Sequence[Sequence[str]]

    def below(self, path: str, value: Node) -> str | None:
        """Return the path of a placeholder's tensor relative to a module.

        Return None if the module does not contain the tensor.
        """
        prefix = f"{path}." if path else ""
        places = self.places.get(value, ())
        return next((place[len(prefix) :] for place in places if place.startswith(prefix)), None)

    def base_name(self, value: Node) -> str:
        """Return the base name of the variable for a value: `linear`, `weight`."""
        place, *_ = self.places.get(value, (value.name,))
        return base_name(place.rpartition(".")[2])

    def arguments(self, region: Region) -> list[Node]:
        """Return the values that a region uses, except those that it computes or that its module contains."""
        return [value for value in region.inputs if self.below(region.call.path, value) is None]


def module_tree(program: ExportedProgram, graph: Graph) -> ModuleTree:
    """Return the modules that contain tensors or operations.

    Raises:
        PythonSourceError: the name of a weight cannot be used as the name of a module's attribute.
    """
    root = ModuleNode("", regions=[regions_of(graph)])
    targets = dict(_targets(program, graph))
    parameters = set(program.graph_signature.parameters)
    entries = {name: Entry(name, tensor, "buffer") for name, tensor in program.state_dict.items()}
    for name, entry in entries.items():
        if name in parameters or isinstance(entry.tensor, torch.nn.Parameter):
            entry.kind = "parameter"
    for name in targets.values():
        if name not in entries:
            tensor = program.constants[name]
            value = constant_value(tensor).detach().cpu() if has_value(tensor) else None
            entries[name] = Entry(name, tensor, "constant", value)
    for path in [name.rpartition(".")[0] for name in entries]:  # In the order of the state dict.
        _at(root, path)
    for region in root.regions[0].inner():
        _at(root, region.call.path).regions.append(region)
    for name in sorted(entries, key=_is_literal):
        entry, owner = entries[name], _at(root, name.rpartition(".")[0])
        if entry.kind == "constant" and (match := _LITERAL.fullmatch(entry.attribute)):
            attribute = Names(owner.names).new(identifier(match[1]))
            entry.place = f"{owner.path}.{attribute}".lstrip(".")
        owner.entries.append(entry)
    for module in root.walk():
        _sort_and_check(module)
    same = names_by_tensor({entry.place: entry.tensor for entry in entries.values()})
    tied = {place: places for places in same for place in places}
    places = {node: (place := entries[name].place, *tied[place]) for node, name in targets.items()}
    return ModuleTree(root, places, [each for each in same if len(each) > 1])


def _targets(program: ExportedProgram, graph: Graph) -> Iterator[tuple[Node, str]]:
    """Yield the placeholder of each weight and constant, and the name of the tensor in the program."""
    for spec, node in input_nodes(program, graph):
        if spec.kind in _HELD and spec.target is not None:
            yield node, spec.target
        elif spec.kind is not InputKind.USER_INPUT:
            what = "an object of a C++ class" if spec.kind is InputKind.CUSTOM_OBJ else "an effect token"
            raise PythonSourceError(f"the program contains {what}, which cannot be written as Python source")


def _is_literal(name: str) -> bool:
    return _LITERAL.fullmatch(name.rpartition(".")[2]) is not None


def _at(root: ModuleNode, path: str) -> ModuleNode:
    node = root
    for part in path.split(".") if path else ():
        if not part or not ((part.isdecimal() and part.isascii()) or is_free_on_module(part)):
            raise PythonSourceError(f"no module can have a child called {part!r} ({path!r})")
        node = node.children.setdefault(part, ModuleNode(f"{node.path}.{part}".lstrip(".")))
    return node


def _sort_and_check(node: ModuleNode) -> None:
    """Sort children whose names are numbers, and reject names that an attribute of a module cannot have."""
    if node.layout != "attributes":
        node.children = dict(sorted(node.children.items(), key=lambda item: int(item[0])))
    for entry in node.entries:
        name = entry.attribute
        if not name or not is_free_on_module(name) or name in node.children:
            raise PythonSourceError(f"no module can hold a tensor called {name!r} ({entry.place!r})")
