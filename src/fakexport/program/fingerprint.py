"""What a program is, small enough to keep in a repository, and large enough to say what changed."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.export import ExportedProgram

from fakexport._torch.program_assembly import guards_code
from fakexport._torch.script_objects import class_name, pickled_object
from fakexport.conditions import UnreadableCondition, conditions_of
from fakexport.program.canonical import (
    CanonicalNode,
    CanonicalProgram,
    Port,
    canonicalise,
    lines_of,
)
from fakexport.program.differences.constant_difference import CONSTANT_KINDS, data_of
from fakexport.program.differences.program_difference import NodeGroup
from fakexport.program.marked_text import DEVICE_MARK, NODE_MARK, fill
from fakexport.program.module_path import star
from fakexport.program.tensor_identity import names_by_tensor

_SHORT = 16


@dataclass(frozen=True)
class NodeLine:
    """Equal calls of one operator in one module or in repeated ones.

    Args:
        count: How many there are.
        operator: `aten.linear.default`.
        module_path: Path of the module, every index a star.
        arguments: With `%` for each node: `(%, %, dtype=torch.float32)`.
        value: Shape, strides, dtype and device of what they return: `float32[s0, 4]{4, 1} cuda:0`.
        wiring: Digest of what their inputs come from.
    """

    count: int
    operator: str
    module_path: str
    arguments: str
    value: str
    wiring: str


@dataclass(frozen=True)
class PortLine:
    """Equal weights, inputs or outputs.

    Args:
        count: How many there are.
        side: `input` or `output`.
        kind: Torch's name for it, in lower case: `parameter`, `user_input`.
        name: Its name, every index a star.
        value: As in `NodeLine`, or the text of a constant.
        persistence: `persistent` or `not persistent` for a buffer, "" for all else.
    """

    count: int
    side: str
    kind: str
    name: str
    value: str
    persistence: str


@dataclass(frozen=True)
class ConstantLine:
    """Equal constants: what is in the program and in no checkpoint.

    Args:
        count: How many there are.
        name: Its name, every index a star.
        value: As in `NodeLine`.
        content: Digest of the data; `unknown` where it has none.
    """

    count: int
    name: str
    value: str
    content: str


@dataclass(frozen=True)
class Fingerprint:
    """What `fingerprint` read off a program.

    Args:
        digest: Equal for two programs exactly if they are the same node for node, with the same constants,
            conditions and ties; names of nodes and values of weights aside. Of one version of torch.
        node_count: All nodes.
        nodes: Calls, in the order of execution; equal ones folded.
        ports: Weights, inputs and outputs.
        constants: By name.
        structures: The containers of the inputs and of the outputs.
        ranges: Symbol to its range.
        conditions: What the trace relied on: `x.shape[1] % 2 == 0`.
        ties: Names of weights that are one tensor: `a = b`.
        places: Where the nodes of a line are; of a program, and not of a stored fingerprint.
    """

    digest: str
    node_count: int
    nodes: tuple[NodeLine, ...]
    ports: tuple[PortLine, ...]
    constants: tuple[ConstantLine, ...]
    structures: tuple[str, str]
    ranges: Mapping[str, str]
    conditions: tuple[str, ...]
    ties: tuple[str, ...]
    places: Mapping[NodeLine, NodeGroup] = field(default_factory=dict, compare=False, repr=False)

    @property
    def operators(self) -> dict[str, int]:
        """Operator to its number of calls, sorted by name."""
        counts: Counter[str] = Counter()
        for line in self.nodes:
            counts[line.operator] += line.count
        return dict(sorted(counts.items()))


def fingerprint(program: ExportedProgram) -> Fingerprint:
    """Return what a program is, without its weights.

    Repeated modules are folded, so a model of 126 equal blocks takes hardly more room than one of two.
    """
    canonical = canonicalise(program)
    constants = tuple(_constants(program, canonical))
    conditions, ties = _conditions(program), _ties(program)
    every = "\n".join((*lines_of(canonical), *map(repr, constants), *conditions, *ties))
    places = _places(canonical)
    return Fingerprint(
        digest=f"sha256:{hashlib.sha256(every.encode()).hexdigest()}",
        node_count=len(canonical.nodes),
        nodes=tuple(places),
        ports=(
            *_ports(canonical, "input", canonical.inputs),
            *_ports(canonical, "output", canonical.outputs),
        ),
        constants=_folded(constants),
        structures=canonical.structures,
        ranges=dict(canonical.ranges),
        conditions=conditions,
        ties=ties,
        places=places,
    )


def _places(program: CanonicalProgram) -> dict[NodeLine, NodeGroup]:
    groups: dict[tuple[str, str, str, str], list[CanonicalNode]] = {}
    for node in program.nodes:
        if node.is_call:
            key = (node.operator, star(node.place.module_path), _arguments(node), node.value)
            groups.setdefault(key, []).append(node)
    found: dict[NodeLine, NodeGroup] = {}
    for (operator, path, arguments, value), nodes in groups.items():
        line = NodeLine(len(nodes), operator, path, arguments, value, _wiring(program, nodes))
        place = nodes[0].place
        found[line] = NodeGroup(operator, path, place.span, len(nodes), place.name)
    return found


def _arguments(node: CanonicalNode) -> str:
    return fill(node.template.replace(NODE_MARK, "%"), DEVICE_MARK, node.literal_devices)


def _wiring(program: CanonicalProgram, nodes: list[CanonicalNode]) -> str:
    """Return a digest of where the inputs come from: operators and modules, and names of weights."""
    sources = Counter(", ".join(_origin(program.nodes[index]) for index in node.references) for node in nodes)
    return _digest(repr(sorted(sources.items())).encode())


def _origin(node: CanonicalNode) -> str:
    if node.operator == "placeholder":
        return star(node.template.partition(" = ")[0])
    return f"{node.operator} {star(node.place.module_path)}"


def _ports(program: CanonicalProgram, side: str, ports: tuple[Port, ...]) -> Iterator[PortLine]:
    counts: Counter[tuple[str, ...]] = Counter()
    for port in ports:
        if port.kind not in CONSTANT_KINDS:
            value = port.constant if port.index is None else program.nodes[port.index].value
            kept = {None: "", True: "persistent", False: "not persistent"}[port.is_persistent]
            counts[side, port.kind.lower(), star(port.name), value or "", kept] += 1
    yield from (PortLine(count, *key) for key, count in counts.items())


def _constants(program: ExportedProgram, canonical: CanonicalProgram) -> Iterator[ConstantLine]:
    """Yield one line per constant, under its full name."""
    values = {
        port.name: canonical.nodes[port.index].value
        for port in canonical.inputs
        if port.index is not None and port.kind in CONSTANT_KINDS  # Buffers are among the ports.
    }
    for name in sorted(program.constants):
        yield ConstantLine(1, name, values.get(name, ""), _content(program.constants[name]))


def _content(constant: object) -> str:
    if isinstance(constant, torch.ScriptObject):
        try:
            return f"{class_name(constant)} {_digest(pickled_object(constant))}"
        except ValueError:
            return class_name(constant)
    data = data_of(constant)
    if data is None:
        return "unknown"
    plain = data.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return _digest(plain.flatten().view(torch.uint8).numpy().tobytes())


def _folded(constants: tuple[ConstantLine, ...]) -> tuple[ConstantLine, ...]:
    counts = Counter((star(line.name), line.value, line.content) for line in constants)
    return tuple(ConstantLine(count, *key) for key, count in counts.items())


def _conditions(program: ExportedProgram) -> tuple[str, ...]:
    try:
        return tuple(map(str, conditions_of(program)))
    except UnreadableCondition:
        return tuple(guards_code(program))


def _ties(program: ExportedProgram) -> tuple[str, ...]:
    return tuple(" = ".join(names) for names in names_by_tensor(program.state_dict) if len(names) > 1)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_SHORT]
