"""The modules of a program, with the weights and constants that each of them holds."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport.history import UnreplayableRead, value_of
from fakexport.program import tensor_identity

from .error import PythonSourceError
from .literal_text import quoted
from .names import Names, identifier, is_free_on_module, is_plain_attribute
from .regions import Region
from .values import Stored, Value

# Export numbers the literals of a program through, so that equal blocks would have unequal names.
_LITERAL = re.compile(r"_?(lifted_tensor|tensor_constant)_?\d+")


@dataclass(eq=False)
class Entry:
    """A tensor that a module holds.

    Args:
        name: Full name in the program: `model.layers.0.mlp.fc1.weight`.
        attribute: Name on the module.
        tensor: The program's tensor, fake or real.
        kind: `parameter`, `buffer` (in the state dict), or `constant` (not in the state dict).
        value: Value of a constant, its real value on the CPU; None where no one knows it.
    """

    name: str
    attribute: str
    tensor: torch.Tensor
    kind: str
    value: torch.Tensor | None = None


@dataclass(eq=False)
class ModuleNode:
    """One module: its children, what it holds, and which operations are its own.

    Args:
        path: `model.layers.0`; "" is the root.
    """

    path: str
    children: dict[str, ModuleNode] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)

    @property
    def layout(self) -> str:
        """How its children are reached: by `list` index, `dict` key, or as `attributes`."""
        names = list(self.children)
        if not names or not all(name.isdecimal() and name.isascii() for name in names):
            return "attributes"
        return "list" if names == [str(index) for index in range(len(names))] else "dict"

    @property
    def is_container(self) -> bool:
        """Whether it only holds other modules, as a `ModuleList` does."""
        return self.path != "" and self.layout != "attributes" and not (self.entries or self.regions)

    def reach(self, relative: str) -> str:
        """Return text that gets a module or tensor below this one: `self.layers[0].fc.weight`."""
        text, node = "self", self
        for part in relative.split("."):
            text = {
                "list": f"{text}[{part}]",
                "dict": f"{text}[{quoted(part)}]",
                "attributes": f"{text}.{part}"
                if is_plain_attribute(part)
                else f"getattr({text}, {quoted(part)})",
            }[node.layout if part in node.children else "attributes"]
            node = node.children.get(part) or ModuleNode("")
        return text

    def walk(self) -> Iterator[ModuleNode]:
        """Yield the modules below it and itself, children first."""
        for child in self.children.values():
            yield from child.walk()
        yield self


@dataclass(frozen=True)
class ModuleTree:
    """All modules of a program.

    Args:
        root: The program itself.
        entries: What is held, by its name in the program.
        ties: Names of one tensor, those with several names only; the first is the one that is initialized.
    """

    root: ModuleNode
    entries: Mapping[str, Entry]
    ties: tuple[tuple[str, ...], ...]

    def below(self, path: str, name: str) -> str | None:
        """Return the path relative to a module by which it reaches a tensor of the program.

        None: it is elsewhere.
        """
        prefix = f"{path}." if path else ""
        others = next((tied for tied in self.ties if name in tied), ())
        for each in dict.fromkeys((name, *others)):
            held = held_at(self.entries[each])
            if held.startswith(prefix):
                return held[len(prefix) :]
        return None

    def arguments(self, region: Region) -> tuple[Value, ...]:
        """Return the values that a region takes from outside and that its module does not hold."""
        return tuple(
            value
            for value in region.inputs
            if not (isinstance(value, Stored) and self.below(region.path, value.name) is not None)
        )


def held_at(entry: Entry) -> str:
    """Return the path under which the file holds a tensor."""
    owner = entry.name.rpartition(".")[0]
    return f"{owner}.{entry.attribute}" if owner else entry.attribute


def module_tree(program: ExportedProgram, region: Region) -> ModuleTree:
    """Return the modules that hold something or that operations belong to.

    Raises:
        PythonSourceError: a name that no module can hold.
    """
    root = ModuleNode("", regions=[region])
    entries = {entry.name: entry for entry in _entries(program)}
    groups: dict[Hashable, list[str]] = {}
    for name, entry in entries.items():
        owner = _at(root, name.rpartition(".")[0])
        owner.entries.append(entry)
        groups.setdefault(tensor_identity(entry.tensor), []).append(name)
    for inner in sorted(region.inner(), key=lambda inner: inner.start):
        _at(root, inner.path).regions.append(inner)
    for node in root.walk():
        _settle(node)
    return ModuleTree(root, entries, tuple(tuple(names) for names in groups.values() if len(names) > 1))


def _at(root: ModuleNode, path: str) -> ModuleNode:
    node = root
    for part in path.split(".") if path else ():
        if not part or not ((part.isdecimal() and part.isascii()) or is_free_on_module(part)):
            raise PythonSourceError(f"no module can have a child called {part!r} ({path!r})")
        below = f"{node.path}.{part}" if node.path else part
        node = node.children.setdefault(part, ModuleNode(below))
    return node


def _settle(node: ModuleNode) -> None:
    """Sort the numbered children, and name the literals."""
    if node.layout != "attributes":
        node.children = dict(sorted(node.children.items(), key=lambda item: int(item[0])))
    names = Names(
        (*node.children, *(e.attribute for e in node.entries if not _LITERAL.fullmatch(e.attribute)))
    )
    for entry in node.entries:
        if entry.kind == "constant" and (match := _LITERAL.fullmatch(entry.attribute)):
            entry.attribute = names.new(identifier(match[1]))
        if not entry.attribute or not is_free_on_module(entry.attribute) or entry.attribute in node.children:
            raise PythonSourceError(
                f"no module can hold a tensor called {entry.attribute!r} ({entry.name!r})"
            )


def _entries(program: ExportedProgram) -> Iterator[Entry]:
    parameters = set(program.graph_signature.parameters)
    for name, tensor in program.state_dict.items():
        is_parameter = name in parameters or isinstance(tensor, torch.nn.Parameter)
        yield Entry(name, name.rpartition(".")[2], tensor, "parameter" if is_parameter else "buffer")
    for spec in program.graph_signature.input_specs:
        name = spec.target
        is_buffer = spec.kind is InputKind.BUFFER and not spec.persistent
        if name is not None and (is_buffer or spec.kind is InputKind.CONSTANT_TENSOR):
            if name in program.state_dict:
                continue
            tensor = program.constants[name]
            yield Entry(name, name.rpartition(".")[2], tensor, "constant", _value(tensor))


def _value(tensor: torch.Tensor) -> torch.Tensor | None:
    try:
        return value_of(tensor).detach().cpu()
    except UnreplayableRead:
        return None
