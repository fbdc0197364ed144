"""Collect everything that determines a program's results, for `diff` and for the digest in a lock file."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import permutations

import torch
from torch.export import ExportedProgram
from torch.multiprocessing.reductions import StorageWeakRef

from fakexport._torch.emulation.wrapper_subclasses import is_wrapper
from fakexport._torch.tracing.program_assembly import guards_code
from fakexport.exporting.guards import argument_names_of, leaves_of
from fakexport.exporting.interface import InputLeaf, UnreadableCondition, read_condition
from fakexport.exporting.program.canonical import CanonicalProgram, MarkedLine, canonicalise
from fakexport.exporting.program.constant_content import content_of, digest
from fakexport.exporting.program.marked_text import DEVICE_MARK, MarkedText, plain_repr
from fakexport.exporting.program.node_names import star
from fakexport.exporting.program.program_facts import ProgramFacts, UnboundConstant, facts_of
from fakexport.exporting.program.tensor_identity import constants_read, names_by_tensor, tensor_identity
from fakexport.exporting.program.tensor_spec import Spelling
from fakexport.exporting.program.written_state import written_state

WITHOUT_EFFECT = {
    "source": "where the program came from",
    "topology": "the device is recorded on each node and weight",
    "profiles": "values that depend on the profile are already in the nodes",
    "device_map": "the device is recorded on each node and weight",
    "dtype": "the dtype is recorded on each node",
    "dynamic_shapes": "its effect is in the range constraints and guards",
    "skipped_checks": "they change no result",
    "versions": "they change no result",
    "left_behind": "weights are compared by their description, independent of whether their data is present",
    "recipes": "`bind` computes weights with them, and the program then contains the weights",
    "computed": "`bind` uses them if a checkpoint lacks weights, and the program then contains the weights",
    "prefix": "`bind` uses it to find weights in a checkpoint; the names in the program are compared",
    "component": "the graph contains only the component",
    "unpacked_parameters": "a number for reports",
    "settings": "the graph contains their effect",
    "has_stand_in_inputs": "example inputs change no result",
    "model": "only the graph is executed",
}
"""Facts that do not affect the results of a program with weights, and why. Every other fact is compared."""

_DEVICE = re.compile(r"(?<=\.device\.type == ')\w+(?=')")
_LONG = 400


@dataclass(frozen=True, slots=True)
class Property:
    """A property of a program that is not visible in the graph.

    Args:
        kind: `weight`, `constant`, `tie`, `memory`, `guard`, `call` or `fact`.
        line: The text that is compared between programs.
        shown: The text that is displayed instead, or "" to display `line`.
    """

    kind: str
    line: MarkedLine
    shown: str = ""

    def __str__(self) -> str:
        return self.shown or str(self.line)


@dataclass(frozen=True)
class ProgramIdentity:
    """The identity of a program. Two programs are the same if and only if their lines are equal.

    Args:
        canonical: Nodes, signature and ranges.
        contents: Digest of each constant's bits, by name.
        properties: Everything that the graph and the constants do not show.
    """

    canonical: CanonicalProgram
    contents: dict[str, str]
    properties: tuple[Property, ...]

    @cached_property
    def lines(self) -> tuple[MarkedLine, ...]:
        """All lines. If two programs differ only in devices, the `text` of their lines is equal."""
        contents = (MarkedLine(f"constant {name}: {found}") for name, found in self.contents.items())
        others = (MarkedLine(f"{p.kind} {p.line.text}", p.line.devices) for p in self.properties)
        return (*self.canonical.lines, *contents, *others)

    @property
    def digest(self) -> str:
        """A hash of the lines. It depends on the version of torch."""
        text = "\n".join(map(str, self.lines))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def folded_properties(self) -> tuple[str, ...]:
        """The properties as short text: one line for repeated modules, one digest for all usual guards."""
        shown = (p for p in self.properties if not self._is_usual(p))
        counts = Counter(f"{p.kind} {star(str(p))}" for p in shown)
        usual = "\n".join(p.line.text for p in self.properties if p.kind == "guard" and not p.shown)
        lines = (text if count == 1 else f"{count} x {text}" for text, count in counts.items())
        return (*sorted(lines), *([f"guard usual ones: {digest(usual.encode())}"] if usual else []))

    def _is_usual(self, found: Property) -> bool:
        """Return whether a property can be derived from the ports, or is a guard that every program has."""
        if found.kind == "guard":
            return not found.shown
        return found.kind in ("weight", "constant") and str(found.line) in self._ports

    @cached_property
    def _ports(self) -> frozenset[str]:
        nodes = self.canonical.nodes
        ports = (port for port in self.canonical.inputs if port.index is not None)
        return frozenset(f"{port.name}: {nodes[port.index or 0].value}" for port in ports)


def identity_of(program: ExportedProgram) -> ProgramIdentity:
    """Return everything that determines what a program computes from its weights and inputs.

    The values of weights are ignored, so a program without its weights has the same identity.
    """
    return ProgramIdentity(
        canonical=canonicalise(program),
        contents={name: content_of(constant) for name, constant in sorted(constants_read(program).items())},
        properties=tuple(_properties(program)),
    )


def _properties(program: ExportedProgram) -> Iterator[Property]:
    tensors = {
        name: value
        for name, value in {**program.state_dict, **constants_read(program)}.items()
        if isinstance(value, torch.Tensor)
    }
    trained = set(program.graph_signature.parameters)
    for name, tensor in sorted(tensors.items()):
        kind = "weight" if name in program.state_dict else "constant"
        yield Property(kind, _entry(name, tensor, is_trained=name in trained))
    for names in sorted(map(sorted, names_by_tensor(program.state_dict))):
        if len(names) > 1:
            yield Property("tie", MarkedLine(" = ".join(names)))
    yield from (Property("memory", MarkedLine(text)) for text in sorted(_shared_memory(tensors, program)))
    guards, leaves = set(map(_without_place, guards_code(program))), leaves_of(program)
    yield from (_guard(text, leaves) for text in sorted(guards))
    names = [node.name for node in program.graph.find_nodes(op="placeholder")]
    specs = [spec.arg.name for spec in program.graph_signature.input_specs]
    if specs != names:
        yield Property("call", MarkedLine(f"inputs {[names.index(name) for name in specs]}"))
    if arguments := argument_names_of(program):
        yield Property("call", MarkedLine(", ".join(arguments)))
    yield from (Property("fact", MarkedLine(text)) for text in _facts(facts_of(program)))


def _entry(name: str, tensor: torch.Tensor, *, is_trained: bool) -> MarkedLine:
    text = MarkedText(Spelling(), {})
    layout = "" if tensor.layout is torch.strided else f" {tensor.layout}"
    grad = "" if tensor.requires_grad == is_trained else f" requires_grad={tensor.requires_grad}"
    return MarkedLine(f"{name}: {text.of(tensor)}{layout}{grad}", tuple(text.devices))


def _shared_memory(tensors: dict[str, torch.Tensor], program: ExportedProgram) -> Iterator[str]:
    """Yield a line for each group of tensors that share memory to which the program writes.

    Sharing makes no difference for tensors that are only read.
    """
    written = written_state(program)
    names_by_storage: dict[StorageWeakRef, list[str]] = {}
    for name, tensor in tensors.items():
        if not is_wrapper(tensor) and tensor.layout is torch.strided and tensor.numel():
            names_by_storage.setdefault(StorageWeakRef(tensor.untyped_storage()), []).append(name)
    for names in names_by_storage.values():
        for one, other in permutations(sorted(names), 2):
            if one in written:
                is_tied = tensor_identity(tensors[one]) == tensor_identity(tensors[other])
                offset = tensors[other].storage_offset() - tensors[one].storage_offset()
                yield f"{other} sees writes to {one}" + ("" if is_tied else f" at {offset:+}")


def _without_place(guard: str) -> str:
    return guard.partition(" and 'asked at ")[0]


def _guard(text: str, leaves: Sequence[InputLeaf]) -> Property:
    line = MarkedLine(_DEVICE.sub(DEVICE_MARK, text), tuple(_DEVICE.findall(text)))
    try:
        condition = read_condition(text, leaves)
    except UnreadableCondition:
        return Property("guard", line, text)
    return Property("guard", line, "" if condition is None else str(condition))


def _facts(facts: ProgramFacts) -> Iterator[str]:
    for each in fields(facts):
        value = getattr(facts, each.name)
        if each.name == "unbound":
            yield from (f"{each.name} {_unbound(constant)}" for constant in value)
        elif each.name not in WITHOUT_EFFECT and value:
            text = plain_repr(value)
            yield f"{each.name} {text if len(text) < _LONG else digest(text.encode())}"


def _unbound(constant: UnboundConstant) -> str:
    parts = (constant.reason, constant.weight, constant.operator, constant.recipe)
    return f"{constant.name}: {', '.join(part for part in parts if part)}"
