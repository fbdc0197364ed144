"""Write a Python class for each module. Modules with the same text share a class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch
from torch.fx import GraphModule

from fakexport.emulation.history import bits
from fakexport.exporting.program import SourcePaths, star

from .literal_text import Devices, PythonSourceError, quoted, usual_device
from .method_text import Scope, indented, wrapped
from .module_tree import Entry, ModuleNode, ModuleTree
from .names import MODULE_NAMES, Names, comment_text, identifier, is_plain_attribute
from .regions import Region

_BASES = {"attributes": "nn.Module", "list": "nn.ModuleList", "dict": "nn.ModuleDict"}
_FEW = 16


@dataclass
class _Class:
    """A class of the generated file: its text, and the paths of the modules that use it."""

    name: str
    base: str
    kind: str
    body: Sequence[str]
    methods: Sequence[str]
    paths: dict[str, None] = field(default_factory=dict)


def class_text(name: str, base: str, kind: str, where: str, body: Iterable[str]) -> str:
    """Return the definition of a class, with a comment about the model's original class."""
    comment = [f"# {comment_text(kind)}: {comment_text(where)}"] if kind else []
    return "\n".join([f"class {name}({base}):", *map(str.rstrip, indented([*comment, *body]))]).rstrip()


class ClassWriter:
    """Writes the classes of the modules below the root, children first.

    Args:
        owner: The graph of the program.
        tree: All modules.
        devices: All devices of the program.

    Attributes:
        in_file: The constants that are stored in a separate file, because they are too large for the text.
    """

    def __init__(self, owner: GraphModule, tree: ModuleTree, devices: frozenset[str]) -> None:
        self.owner = owner
        self.tree = tree
        self.devices = devices
        self.in_file: list[Entry] = []
        self.class_names = Names(MODULE_NAMES)
        self._paths = SourcePaths(Path.cwd())
        self._methods: dict[Region, str] = {}
        self._uses: dict[ModuleNode, tuple[str, list[str]]] = {}
        self._classes: dict[tuple[str, ...], _Class] = {}

    @property
    def texts(self) -> list[str]:
        """The texts of the classes. Each class comes after the classes that it uses."""
        return [
            class_text(each.name, each.base, each.kind, ", ".join(each.paths), each.body)
            for each in self._classes.values()
        ]

    def scope(self, node: ModuleNode, devices: Devices) -> Scope:
        """Return the data that the methods of a new class share."""
        names = Names(node.names)
        return Scope(self.owner, self.tree, node, devices, self._methods, self._paths, names)

    def write(self, node: ModuleNode) -> None:
        """Write the classes of a module's children and then its own, or reuse a class with the same text."""
        devices = Devices(self.devices, node.names)
        base, statements = self.constructor(node, devices)
        distinct: dict[str, list[Region]] = {}
        for region in node.regions:  # Equal parameter names, so that identical blocks have equal text.
            text = self.scope(node, devices).method("", region, "argument")
            distinct.setdefault("\n".join(text), []).append(region)
        attribute = identifier(node.path.rpartition(".")[2], otherwise="module")
        wanted = node.kind.rpartition(".")[2] or attribute.title().replace("_", "")
        shared = (wanted, base, *statements, *distinct)
        if shared not in self._classes:
            scope, names, lines = self.scope(node, devices), list[str](), list[str]()
            for region, *_ in distinct.values():
                names.append(scope.names.new("forward"))
                lines += ["", _why_another(region, node)] if lines else []
                lines += scope.method(names[-1], region)
            body = [*defined_constructor(devices.used.values(), devices, statements), *lines]
            name = self.class_names.new(identifier(wanted, otherwise="Module"))
            self._classes[shared] = _Class(name, base, node.kind, body, names)
        found = self._classes[shared]
        found.paths[star(node.path)] = None
        self._uses[node] = found.name, list(devices.used)
        for name, regions in zip(found.methods, distinct.values(), strict=True):
            self._methods.update(dict.fromkeys(regions, name))

    def constructor(self, node: ModuleNode, devices: Devices) -> tuple[str, list[str]]:
        """Return the base class, and the statements that create the module's contents."""
        children = {name: self._construction(child, devices) for name, child in node.children.items()}
        lines = ["super().__init__()"]
        if node.layout != "attributes":
            lines = [f"super().__init__({_container_text(node.layout, children)})"]
        lines += [line for entry in node.entries for line in self._held(entry, devices)]
        if node.layout == "attributes":
            lines += [assigned("self", name, text) for name, text in children.items()]
        return _BASES[node.layout], lines

    def _construction(self, node: ModuleNode, devices: Devices) -> str:
        if not node.is_container:
            name, used = self._uses[node]
            return f"{name}({', '.join(map(devices.parameter, used))})"
        children = {name: self._construction(child, devices) for name, child in node.children.items()}
        return f"{_BASES[node.layout]}({_container_text(node.layout, children)})"

    def _held(self, entry: Entry, devices: Devices) -> list[str]:
        device = devices.parameter(usual_device(str(entry.tensor.device)))
        made = None if entry.value is None else _small_text(entry.value, device)
        if made is None:
            made = _empty_text(entry.tensor if entry.value is None else entry.value, device)
            if entry.kind == "constant" and entry.tensor.numel():
                self.in_file.append(entry)
        if entry.kind == "parameter":
            frozen = "" if entry.tensor.requires_grad else ", requires_grad=False"
            return [assigned("self", entry.attribute, f"nn.Parameter({made}{frozen})")]
        options = ["persistent=False"] if entry.kind == "constant" else []
        return wrapped("self.register_buffer(", (quoted(entry.attribute), made, *options), ")")


def defined_constructor(
    parameters: Iterable[str], devices: Devices, statements: Sequence[str], before: Iterable[str] = ()
) -> list[str]:
    """Return the text of the constructor. Call this after writing the methods, which adds to `devices`."""
    kept = [f"self.{name} = {name}" for name in devices.in_methods]
    lines = [*before, statements[0], *kept, *statements[1:]]
    return ["", f"def __init__({', '.join(('self', *parameters))}):", *indented(lines), ""]


def assigned(owner: str, name: str, value: str) -> str:
    """Return a statement that sets an attribute."""
    is_plain = is_plain_attribute(name)
    return f"{owner}.{name} = {value}" if is_plain else f"setattr({owner}, {quoted(name)}, {value})"


def _why_another(region: Region, node: ModuleNode) -> str:
    if any(other.call == region.call for other in node.regions if other is not region):
        return (
            "# The module hierarchy could not be preserved: the program leaves this module and returns to it."
        )
    return "# A different call of this module runs these operations."


def _container_text(layout: str, children: Mapping[str, str]) -> str:
    """Return the text of a dict or list. A comprehension creates consecutive items with equal text."""
    if layout == "dict":
        return f"{{{', '.join(f'{quoted(name)}: {text}' for name, text in children.items())}}}"
    parts = [(text, len(list(group))) for text, group in groupby(children.values())]
    if len(parts) == 1 and parts[0][1] > 1:
        return f"[{parts[0][0]} for _ in range({parts[0][1]})]"
    items = [text if count == 1 else f"*({text} for _ in range({count}))" for text, count in parts]
    return f"[{', '.join(items)}]"


def _empty_text(tensor: torch.Tensor, device: str) -> str:
    """Return an expression that creates an uninitialized tensor with the same shape, strides and dtype.

    Raises:
        PythonSourceError: the tensor has a layout without strides, such as a sparse one.
    """
    if tensor.layout is not torch.strided:
        raise PythonSourceError(
            f"a tensor has the layout {tensor.layout}, but only strided tensors can be written"
        )
    shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    options = f"dtype={tensor.dtype}, device={device}"
    if strides == torch.empty(shape, device="meta").stride():
        return f"torch.empty({shape}, {options})"
    return f"torch.empty_strided({shape}, {strides}, {options})"


def _small_text(value: torch.Tensor, device: str) -> str | None:
    """Return an expression with the values of a tensor. None if they are too many, or not exact as text."""
    if not 0 < value.numel() <= _FEW or value.is_complex() or not value.is_contiguous():
        return None
    if not torch.equal(bits(torch.tensor(value.tolist(), dtype=value.dtype)), bits(value)):
        return None
    return f"torch.tensor({value.tolist()}, dtype={value.dtype}, device={device})"
