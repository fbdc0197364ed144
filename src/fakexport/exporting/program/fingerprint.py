"""Summarize a program in a form that is small enough to store in a repository and shows what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch.export import ExportedProgram

from fakexport.exporting.interface import NodeGroup
from fakexport.exporting.program.canonical import CanonicalNode, CanonicalProgram, Port
from fakexport.exporting.program.constant_content import digest
from fakexport.exporting.program.differences.constant_difference import CONSTANT_KINDS
from fakexport.exporting.program.identity import ProgramIdentity, identity_of
from fakexport.exporting.program.marked_text import DEVICE_MARK, NODE_MARK, fill
from fakexport.exporting.program.node_names import star


@dataclass(frozen=True)
class NodeLine:
    """Identical calls of one operator in one module or in repeated modules.

    Args:
        count: Number of calls.
        operator: Name of the operator, such as `aten.linear.default`.
        module_path: Path of the module, with stars for indices.
        arguments: The arguments, with `%` for each node: `(%, %, dtype=torch.float32)`.
        value: Shape, strides, dtype and device of the results: `float32[s0, 4]{4, 1} cuda:0`.
        wiring: Digest of where the inputs of the calls come from.
    """

    count: int
    operator: str
    module_path: str
    arguments: str
    value: str
    wiring: str


@dataclass(frozen=True)
class PortLine:
    """Identical weights, inputs or outputs.

    Args:
        count: Number of weights, inputs or outputs.
        side: `input` or `output`.
        kind: torch's name for the kind, in lowercase: `parameter`, `user_input`.
        name: The name, with stars for indices.
        value: Shape, strides, dtype and device as in `NodeLine`, or the text of a constant.
        persistence: `persistent` or `not persistent` for a buffer; otherwise "".
    """

    count: int
    side: str
    kind: str
    name: str
    value: str
    persistence: str


@dataclass(frozen=True)
class ConstantLine:
    """Identical constants. Constants are tensors of the program that checkpoints do not contain.

    Args:
        count: Number of constants.
        name: The name, with stars for indices.
        value: Shape, strides, dtype and device as in `NodeLine`.
        content: Digest of the data, or `unknown` if the data is unknown.
    """

    count: int
    name: str
    value: str
    content: str


@dataclass(frozen=True)
class Fingerprint:
    """The result of `fingerprint` for a program.

    Args:
        digest: The digest of `ProgramIdentity`. For one version of torch, two digests are equal if and only
            if `diff` finds no difference.
        node_count: Number of nodes.
        nodes: Calls in the order of execution. Identical calls are merged.
        ports: Weights, inputs and outputs.
        constants: Constants, sorted by name.
        structures: The containers of the inputs and the containers of the outputs.
        ranges: The range of each symbol.
        properties: Properties that are not visible in the graph, such as `guard x.shape[1] % 2 == 0` or `tie
            a = b`; see `Property`.
        places: The source line of each entry in `nodes`. Empty for a stored fingerprint.
    """

    digest: str
    node_count: int
    nodes: tuple[NodeLine, ...]
    ports: tuple[PortLine, ...]
    constants: tuple[ConstantLine, ...]
    structures: tuple[str, str]
    ranges: Mapping[str, str]
    properties: tuple[str, ...]
    places: Mapping[NodeLine, NodeGroup] = field(default_factory=dict, compare=False, repr=False)

    @property
    def operators(self) -> dict[str, int]:
        """The number of calls of each operator, sorted by name."""
        counts: Counter[str] = Counter()
        for line in self.nodes:
            counts[line.operator] += line.count
        return dict(sorted(counts.items()))


def fingerprint(program: ExportedProgram) -> Fingerprint:
    """Return a summary of a program without its weights.

    Repeated modules are merged, so a summary of 126 identical blocks is hardly larger than one of two blocks.
    """
    identity = identity_of(program)
    canonical = identity.canonical
    places = _places(canonical)
    return Fingerprint(
        digest=identity.digest,
        node_count=len(canonical.nodes),
        nodes=tuple(places),
        ports=(
            *_ports(canonical, "input", canonical.inputs),
            *_ports(canonical, "output", canonical.outputs),
        ),
        constants=tuple(_constants(identity)),
        structures=canonical.structures,
        ranges=dict(canonical.ranges),
        properties=identity.folded_properties,
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
    """Return a digest of the operators, modules and weights that the inputs of the nodes come from."""
    sources = Counter(", ".join(_origin(program.nodes[index]) for index in node.references) for node in nodes)
    return digest(repr(sorted(sources.items())).encode())


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


def _constants(identity: ProgramIdentity) -> Iterator[ConstantLine]:
    canonical = identity.canonical
    values = {
        port.name: canonical.nodes[port.index].value
        for port in canonical.inputs
        if port.index is not None and port.kind in CONSTANT_KINDS  # Buffers are included in the ports.
    }
    counts = Counter((star(name), values.get(name, ""), found) for name, found in identity.contents.items())
    return (ConstantLine(count, *key) for key, count in counts.items())
