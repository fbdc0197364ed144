"""Everything that decides what a program computes: `diff` and the digest of a lock compare the same lines."""

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

from fakexport._torch.program_assembly import guards_code
from fakexport._torch.wrapper_subclasses import is_wrapper
from fakexport.conditions import InputLeaf, UnreadableCondition, leaves_of, read_condition
from fakexport.program.canonical import CanonicalProgram, MarkedLine, canonicalise
from fakexport.program.constant_content import content_of, digest
from fakexport.program.marked_text import DEVICE_MARK, MarkedText, plain_repr
from fakexport.program.node_names import star
from fakexport.program.program_facts import ProgramFacts, facts_of
from fakexport.program.tensor_identity import names_by_tensor, tensor_identity
from fakexport.program.tensor_spec import Spelling
from fakexport.program.unbound_constant import UnboundConstant
from fakexport.program.written_state import written_state

WITHOUT_EFFECT = {
    "source": "where the program came from",
    "topology": "the nodes and weights have their devices",
    "profiles": "the nodes have what the profiles decided",
    "device_map": "the nodes and weights have their devices",
    "dtype": "the nodes have their dtypes",
    "dynamic_shapes": "the ranges and guards say it",
    "skipped_checks": "they change no result",
    "versions": "they change no result",
    "left_behind": "weights are compared by their description, not by whether their data is here",
    "recipes": "`bind` makes the weights of a checkpoint's entries with them, before the program has them",
    "computed": "values that `bind` takes for weights which a checkpoint lacks, before the program has them",
    "prefix": "`bind` finds the weights in a checkpoint by it; their names in the program are compared",
    "component": "the graph is that of the component",
    "has_stand_in_inputs": "example inputs change no result",
    "model": "the graph is all that runs",
}
"""Facts that change no result of a program that has its weights, and why. Every other fact counts."""

_DEVICE = re.compile(r"(?<=\.device\.type == ')\w+(?=')")
_LONG = 400


@dataclass(frozen=True, slots=True)
class Property:
    """Something that the graph does not show.

    Args:
        kind: `weight`, `constant`, `tie`, `memory`, `guard`, `call` or `fact`.
        line: As it is compared.
        shown: As people read it; "" if the line is.
    """

    kind: str
    line: MarkedLine
    shown: str = ""

    def __str__(self) -> str:
        return self.shown or str(self.line)


@dataclass(frozen=True)
class ProgramIdentity:
    """What a program is. Two programs are the same exactly if their lines are equal.

    Args:
        canonical: Nodes, signature and ranges.
        contents: Digest of each constant's bits by name.
        properties: Everything else.
    """

    canonical: CanonicalProgram
    contents: dict[str, str]
    properties: tuple[Property, ...]

    @cached_property
    def lines(self) -> tuple[MarkedLine, ...]:
        """All lines. Those of two programs that differ in devices alone have equal texts."""
        contents = (MarkedLine(f"constant {name}: {found}") for name, found in self.contents.items())
        others = (MarkedLine(f"{p.kind} {p.line.text}", p.line.devices) for p in self.properties)
        return (*self.canonical.lines, *contents, *others)

    @property
    def digest(self) -> str:
        """Hash of the lines; of one version of torch."""
        text = "\n".join(map(str, self.lines))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    @property
    def folded_properties(self) -> tuple[str, ...]:
        """The properties as short text: repeated modules share a line, and usual guards share a digest."""
        shown = (p for p in self.properties if not self._is_usual(p))
        counts = Counter(f"{p.kind} {star(str(p))}" for p in shown)
        usual = "\n".join(p.line.text for p in self.properties if p.kind == "guard" and not p.shown)
        lines = (text if count == 1 else f"{count} x {text}" for text, count in counts.items())
        return (*sorted(lines), *([f"guard usual ones: {digest(usual.encode())}"] if usual else []))

    def _is_usual(self, found: Property) -> bool:
        """Return whether the ports of the program show the same, or every program has its like."""
        if found.kind == "guard":
            return not found.shown
        return found.kind in ("weight", "constant") and str(found.line) in self._ports

    @cached_property
    def _ports(self) -> frozenset[str]:
        nodes = self.canonical.nodes
        ports = (port for port in self.canonical.inputs if port.index is not None)
        return frozenset(f"{port.name}: {nodes[port.index or 0].value}" for port in ports)


def identity_of(program: ExportedProgram) -> ProgramIdentity:
    """Return everything that decides what a program computes from its weights and inputs.

    Values of weights are left out: a program without its weights is the same program.
    """
    return ProgramIdentity(
        canonical=canonicalise(program),
        contents={name: content_of(program.constants[name]) for name in sorted(program.constants)},
        properties=tuple(_properties(program)),
    )


def _properties(program: ExportedProgram) -> Iterator[Property]:
    tensors = {
        name: value
        for name, value in {**program.state_dict, **program.constants}.items()
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
    root = next((entry.signature for entry in program.module_call_graph if entry.fqn == ""), None)
    if root is not None and root.forward_arg_names:
        yield Property("call", MarkedLine(", ".join(root.forward_arg_names)))
    yield from (Property("fact", MarkedLine(text)) for text in _facts(facts_of(program)))


def _entry(name: str, tensor: torch.Tensor, *, is_trained: bool) -> MarkedLine:
    text = MarkedText(Spelling(), {})
    layout = "" if tensor.layout is torch.strided else f" {tensor.layout}"
    grad = "" if tensor.requires_grad == is_trained else f" requires_grad={tensor.requires_grad}"
    return MarkedLine(f"{name}: {text.of(tensor)}{layout}{grad}", tuple(text.devices))


def _shared_memory(tensors: dict[str, torch.Tensor], program: ExportedProgram) -> Iterator[str]:
    """Yield which tensors see what the program writes into another one.

    Tensors that are only read have the same values in memory of their own.
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
    """Return why a constant has no value, without the line of the file."""
    parts = (constant.reason, constant.weight, constant.operator, constant.recipe)
    return f"{constant.name}: {', '.join(part for part in parts if part)}"
