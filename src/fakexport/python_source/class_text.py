"""Python text of the classes: one for each module, and one for all modules whose text is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fakexport.history import bits
from fakexport.program import SourcePaths, star

from .error import PythonSourceError
from .literal_text import Devices, literal_text, quoted, usual_device
from .method_text import INDENT, Callee, MethodText, Scope, wrapped
from .module_tree import Entry, ModuleNode, ModuleTree
from .names import MODULE_NAMES, Names, base_name, comment_text, identifier, is_plain_attribute
from .regions import Region
from .values import Value

_BASES = {"attributes": "nn.Module", "list": "nn.ModuleList", "dict": "nn.ModuleDict"}
_SHOWN = 4

_FEW = 16


@dataclass(frozen=True)
class _Use:
    """How a module is made: its class, and the devices that the constructor is given."""

    name: str
    devices: tuple[str, ...]


@dataclass
class _Class:
    """A class of the file.

    Args:
        name: Its name.
        base: What it derives from.
        kind: The class that it was in the model; not to be trusted.
        body: Its constructor and methods.
        methods: Names of the methods, in the order of the distinct regions.
        paths: The modules that are of it.
    """

    name: str
    base: str
    kind: str
    body: list[str]
    methods: tuple[str, ...]
    paths: dict[str, None] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The definition."""
        shown = [comment_text(path) for path in list(self.paths)[:_SHOWN]]
        more = f" and {len(self.paths) - _SHOWN} more" if len(self.paths) > _SHOWN else ""
        lines = [f"class {self.name}({self.base}):"]
        if self.kind:
            lines.append(f"{INDENT}# {comment_text(self.kind)}: {', '.join(shown) or 'the program'}{more}")
        return "\n".join([*lines, *(f"{INDENT}{line}".rstrip() for line in self.body)]).rstrip()


@dataclass(frozen=True)
class Constructor:
    """The statements of a constructor, after its first line.

    Args:
        base: What the class derives from.
        lines: The statements.
    """

    base: str
    lines: list[str]


class ClassWriter:
    """Writes the classes of the modules below the root, children first.

    Args:
        tree: All modules.
        kinds: The class that each module was in the model, by path.
        devices: All devices of the program.
        in_file: Filled with the constants whose values do not fit into the text.
    """

    def __init__(self, tree: ModuleTree, kinds: Mapping[str, str], devices: frozenset[str]) -> None:
        self.tree = tree
        self.kinds = kinds
        self.devices = devices
        self.callees: dict[Region, Callee] = {}
        self.paths = SourcePaths(Path.cwd())
        self.in_file: list[Entry] = []
        self.class_names = Names(MODULE_NAMES)
        self._uses: dict[ModuleNode, _Use] = {}
        self._classes: dict[tuple[str, ...], _Class] = {}

    @property
    def texts(self) -> list[str]:
        """The classes that were written, each after those that it uses."""
        return [each.text for each in self._classes.values()]

    def write(self, node: ModuleNode) -> None:
        """Write a module whose children are written, or find the class that it shares."""
        kind = self.kinds.get(node.path, "")
        devices = Devices(self.devices, held_names(node))
        constructor = self.constructor(node, devices)
        scope = Scope(self.tree, node, devices, self.callees, self.paths)
        distinct: dict[str, list[Region]] = {}
        for region in node.regions:
            own = Scope(self.tree, node, devices, self.callees, self.paths, names=Names(held_names(node)))
            key = "\n".join(_method("", region, own, kind, is_shared=True))
            distinct.setdefault(key, []).append(region)
        wanted = kind.rpartition(".")[2] or _camel_case(node.path.rpartition(".")[2])
        shared = (wanted, constructor.base, *constructor.lines, *distinct)
        if shared not in self._classes:
            scope.names = Names(held_names(node))
            names, lines = [], []
            for regions in distinct.values():
                names.append(scope.names.new("forward"))
                if len(names) > 1:
                    lines += ["", *_why_another(regions[0], node)]
                lines += _method(names[-1], regions[0], scope, kind, is_shared=False)
            body = [*self.definition(devices, constructor), *lines]
            name = self.class_names.new(identifier(wanted, otherwise="Module"))
            self._classes[shared] = _Class(name, constructor.base, kind, body, tuple(names))
        found = self._classes[shared]
        found.paths[star(node.path)] = None
        self._uses[node] = _Use(found.name, tuple(devices.used))
        for name, regions in zip(found.methods, distinct.values(), strict=True):
            callee = Callee(name, is_from_torch(kind))
            self.callees.update(dict.fromkeys(regions, callee))

    def definition(self, devices: Devices, constructor: Constructor) -> list[str]:
        """Return the constructor, once it is known which devices the methods use."""
        kept = [f"self.{name} = {name}" for name in devices.in_methods]
        first, *rest = constructor.lines
        signature = ", ".join(("self", *devices.used.values()))
        lines = [first, *kept, *rest]
        return ["", f"def __init__({signature}):", *(f"{INDENT}{line}" for line in lines), ""]

    def constructor(self, node: ModuleNode, devices: Devices) -> Constructor:
        """Return the statements that make what the module holds."""
        children = {name: self.construction(child, devices) for name, child in node.children.items()}
        lines = ["super().__init__()"]
        if node.layout == "list":
            lines = [f"super().__init__({_list_text(list(children.values()))})"]
        elif node.layout == "dict":
            lines = [f"super().__init__({_dict_text(children)})"]
        lines += [line for entry in node.entries for line in self._held(entry, devices)]
        if node.layout == "attributes":
            for name, text in children.items():
                plain = f"self.{name} = {text}"
                lines.append(
                    plain if is_plain_attribute(name) else f"self.add_module({quoted(name)}, {text})"
                )
        return Constructor(_BASES[node.layout], lines)

    def construction(self, node: ModuleNode, devices: Devices) -> str:
        """Return text that makes a module."""
        if not node.is_container:
            use = self._uses[node]
            return f"{use.name}({', '.join(map(devices.parameter, use.devices))})"
        children = {name: self.construction(child, devices) for name, child in node.children.items()}
        if node.layout == "list":
            return f"nn.ModuleList({_list_text(list(children.values()))})"
        return f"nn.ModuleDict({_dict_text(children)})"

    def _held(self, entry: Entry, devices: Devices) -> list[str]:
        device = devices.parameter(usual_device(str(entry.tensor.device)))
        name = entry.attribute
        if entry.kind == "parameter":
            frozen = "" if entry.tensor.requires_grad else ", requires_grad=False"
            made = f"nn.Parameter({empty_text(entry.tensor, device)}{frozen})"
            is_plain = is_plain_attribute(name)
            return [
                f"self.{name} = {made}" if is_plain else f"self.register_parameter({quoted(name)}, {made})"
            ]
        if entry.kind == "buffer":
            return wrapped("self.register_buffer(", (quoted(name), empty_text(entry.tensor, device)), ")")
        value = entry.tensor if entry.value is None else entry.value
        small = None if entry.value is None else small_text(entry.value, device)
        made = small or empty_text(value, device)
        if small is None:
            self.in_file.append(entry)
        return wrapped("self.register_buffer(", (quoted(name), made, "persistent=False"), ")")


def is_from_torch(kind: str) -> bool:
    """Return whether a class is torch's own."""
    return kind.startswith("torch.")


def _method(name: str, region: Region, scope: Scope, kind: str, *, is_shared: bool) -> list[str]:
    """Return a method and the subgraphs that it runs. The shared form has the same names for all blocks."""

    def argument(value: Value) -> str:
        return "argument" if is_shared else base_name(value.hint)

    text = MethodText(scope, is_from_torch=is_from_torch(kind), argument=argument)
    parameters = text.parameters(scope.tree.arguments(region))
    lines = text.region(region)
    if region.outputs:
        lines.append(f"return {', '.join(map(text.name, region.outputs))}")
    return [*defined(name, parameters, lines), *bodies(scope)]


def defined(name: str, parameters: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the text of a method."""
    signature = f"def {name}({', '.join(('self', *parameters))}):"
    return [signature, *(f"{INDENT}{line}" for line in lines or ("pass",))]


def bodies(scope: Scope) -> list[str]:
    """Return the methods of the subgraphs that the methods so far run; each is taken from the scope."""
    lines: list[str] = []
    while scope.bodies:
        body, name = scope.bodies.pop(0)
        text = MethodText(scope, is_from_torch=False, argument=lambda value: base_name(value.hint))
        parameters = text.parameters(body.parameters)
        lines += ["", *defined(name, parameters, text.body(body))]
    return lines


def held_names(node: ModuleNode) -> tuple[str, ...]:
    """Return the attributes of a module that are not methods."""
    return (*node.children, *(entry.attribute for entry in node.entries))


def _why_another(region: Region, node: ModuleNode) -> list[str]:
    is_continued = any(other.call == region.call for other in node.regions if other is not region)
    if is_continued:
        return ["# The module hierarchy could not be kept: the program leaves this module and returns to it."]
    return ["# Another call of the module, which does not run the same operations."]


def _camel_case(name: str) -> str:
    words = identifier(name, otherwise="module").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words)


def _list_text(texts: Sequence[str]) -> str:
    """Return a list in which neighbors with the same text are made in a loop."""
    parts: list[tuple[str, int]] = []
    for text in texts:
        if parts and parts[-1][0] == text:
            parts[-1] = (text, parts[-1][1] + 1)
        else:
            parts.append((text, 1))
    if len(parts) == 1 and parts[0][1] > 1:
        return f"[{parts[0][0]} for _ in range({parts[0][1]})]"
    items = [text if count == 1 else f"*({text} for _ in range({count}))" for text, count in parts]
    return f"[{', '.join(items)}]"


def _dict_text(texts: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{quoted(name)}: {text}' for name, text in texts.items())}}}"


def empty_text(tensor: torch.Tensor, device: str) -> str:
    """Return text of a tensor of this shape, layout and dtype, without values.

    Raises:
        PythonSourceError: it is sparse, or of another layout without strides.
    """
    if tensor.layout is not torch.strided:
        raise PythonSourceError(f"a tensor is {tensor.layout}, and only strided tensors can be written")
    shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    options = f"dtype={tensor.dtype}, device={device}"
    if strides == torch.empty(shape, device="meta").stride():
        return f"torch.empty({shape}, {options})"
    return f"torch.empty_strided({shape}, {strides}, {options})"


def small_text(value: torch.Tensor, device: str) -> str | None:
    """Return text of a tensor with its values, or None where they are many, or not exact as text."""
    if value.numel() > _FEW or value.numel() == 0 or not value.is_contiguous():
        return None
    again = torch.tensor(value.tolist(), dtype=value.dtype)
    if again.shape != value.shape or not torch.equal(bits(again), bits(value)):
        return None
    return f"torch.tensor({_nested(value.tolist())}, dtype={value.dtype}, device={device})"


def _nested(values: Any) -> str:
    return f"[{', '.join(map(_nested, values))}]" if isinstance(values, list) else literal_text(values)
