"""Python text of the class of the program itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from .class_text import ClassWriter, bodies, defined, held_names, is_from_torch
from .input_text import input_text
from .literal_text import Devices, literal_text, quoted
from .method_text import INDENT, MethodText, Scope
from .module_tree import ModuleTree, held_at
from .names import Names, base_name, comment_text, identifier, is_plain_attribute
from .reading import Reading
from .values import Value

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_ORDINARY = {tuple, list, dict, OrderedDict}


@dataclass(frozen=True)
class RootText:
    """The class of the program.

    Args:
        name: Its name.
        text: Its definition.
        foreign: Containers of the outputs that are written as plain ones, to need no library.
    """

    name: str
    text: str
    foreign: tuple[str, ...]


def root_text(program: ExportedProgram, reading: Reading, writer: ClassWriter) -> RootText:
    """Write the class of the program; all others are written."""
    tree, kind = writer.tree, reading.kinds.get("", "")
    node = tree.root
    devices = Devices(writer.devices, held_names(node))
    devices.name_all()
    constructor = writer.constructor(node, devices)
    scope = Scope(
        tree, node, devices, writer.callees, writer.paths, names=Names((*held_names(node), "forward"))
    )
    text = MethodText(scope, is_from_torch=is_from_torch(kind), argument=lambda value: base_name(value.hint))
    inputs = input_text(program, reading.names, text)
    lines = [*inputs.lines, *text.region(node.regions[0])]
    results = _Results(program, reading, text)
    lines += results.mutations()
    lines.append(f"return {results.text()}")
    methods = [*defined("forward", inputs.parameters, lines), *bodies(scope)]
    first, *rest = constructor.lines
    start = [f"{name} = torch.device({name})" for name in devices.used.values()]
    kept = [f"self.{name} = {name}" for name in devices.in_methods]
    parameters = [f"{name}={quoted(device)}" for device, name in devices.used.items()]
    unknown = [held_at(entry) for entry in writer.in_file if entry.value is None]
    wanted = ["constants"] if unknown else []
    signature = ", ".join(("self", *wanted, *parameters))
    made = [*start, first, *kept, *rest, *_ties(tree), *_loading(writer, unknown)]
    name = writer.class_names.new(identifier(kind.rpartition(".")[2], otherwise="Module"))
    body = ["", f"def __init__({signature}):", *(f"{INDENT}{line}" for line in made), "", *methods]
    head = [f"class {name}({constructor.base}):"]
    if kind:
        head.append(f"{INDENT}# {comment_text(kind)}: the program")
    text_of_class = "\n".join([*head, *(f"{INDENT}{line}".rstrip() for line in body)])
    return RootText(name, text_of_class, tuple(results.foreign))


def _ties(tree: ModuleTree) -> Iterator[str]:
    """Return statements that make one tensor of those that are one in the program."""
    for first, *others in tree.ties:
        source = tree.root.reach(held_at(tree.entries[first]))
        for other in others:
            path = held_at(tree.entries[other])
            name = path.rpartition(".")[2]
            target = tree.root.reach(path)
            if is_plain_attribute(name):
                yield f"{target} = {source}"
            else:
                owner = tree.root.reach(path.rpartition(".")[0]) if "." in path else "self"
                yield f"setattr({owner}, {quoted(name)}, {source})"


def _loading(writer: ClassWriter, unknown: list[str]) -> Iterator[str]:
    for path in unknown:
        owner, _, name = path.rpartition(".")
        yield f"# The program has no value for {comment_text(path)}."
        yield (
            f"self.get_submodule({quoted(owner)}).get_buffer({quoted(name)}).copy_(constants[{quoted(path)}])"
        )
    if any(entry.value is not None for entry in writer.in_file):
        yield "load_constants(self)"


class _Results:
    """What the program changes and returns."""

    def __init__(self, program: ExportedProgram, reading: Reading, text: MethodText) -> None:
        self._program = program
        self._reading = reading
        self._text = text
        self._copied: dict[Value, str] = {}
        self.foreign: dict[str, None] = {}

    def mutations(self) -> Iterator[str]:
        """Return statements that write new values into buffers and inputs."""
        specs = self._program.graph_signature.output_specs
        for spec, value in zip(specs, self._reading.body.result, strict=True):
            if spec.kind not in _MUTATIONS:
                continue
            assert spec.target is not None
            is_input = spec.kind is OutputKind.USER_INPUT_MUTATION
            changed = self._reading.names[spec.target] if is_input else self._reading.stored[spec.target]
            target = self._text.name(changed)
            yield f"{target}.copy_({self._text.text(value)})"
            if isinstance(value, Value):
                self._copied[value] = target

    def text(self) -> str:
        """Return what `forward` returns."""
        specs = self._program.graph_signature.output_specs
        leaves = [
            self._copied.get(value) or self._text.text(value)
            for spec, value in zip(specs, self._reading.body.result, strict=True)
            if spec.kind is OutputKind.USER_OUTPUT
        ]
        structure = self._program.call_spec.out_spec
        return self._part(structure, iter(leaves))

    def _part(self, spec: Any, leaves: Iterator[str]) -> str:
        if spec.is_leaf():
            return next(leaves)
        parts = [self._part(child, leaves) for child in spec.children()]
        if spec.type not in _ORDINARY:
            self.foreign[f"{spec.type.__module__}.{spec.type.__qualname__}"] = None
        if spec.type is list:
            return f"[{', '.join(parts)}]"
        keys = _keys(spec)
        if keys is not None:
            pairs = [f"{literal_text(key)}: {part}" for key, part in zip(keys, parts, strict=True)]
            text = f"{{{', '.join(pairs)}}}"
            return f"OrderedDict({text})" if spec.type is OrderedDict else text
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _keys(spec: Any) -> list[Any] | None:
    """Return the keys of a mapping, also of one that a library has registered."""
    if spec.type in (dict, OrderedDict):
        return list(spec.context)
    for candidate in (spec.context, *(spec.context if isinstance(spec.context, (list, tuple)) else ())):
        is_keys = isinstance(candidate, (list, tuple)) and len(candidate) == spec.num_children
        if is_keys and candidate and all(isinstance(key, str) for key in candidate):
            return list(candidate)
    return None
