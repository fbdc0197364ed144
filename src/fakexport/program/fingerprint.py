"""What a program is, small enough to keep in a repository, and large enough to say what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch.export import ExportedProgram

from fakexport.program.canonical import CanonicalNode, CanonicalProgram, Port
from fakexport.program.constant_content import digest
from fakexport.program.differences.constant_difference import CONSTANT_KINDS
from fakexport.program.differences.program_difference import NodeGroup
from fakexport.program.identity import ProgramIdentity, identity_of
from fakexport.program.marked_text import DEVICE_MARK, NODE_MARK, fill
from fakexport.program.node_names import star


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
        digest: That of `ProgramIdentity`: equal exactly if `diff` finds no difference, on one torch version.
        node_count: All nodes.
        nodes: Calls, in the order of execution; equal ones folded.
        ports: Weights, inputs and outputs.
        constants: By name.
        structures: The containers of the inputs and of the outputs.
        ranges: Symbol to its range.
        properties: What the graph does not show: `guard x.shape[1] % 2 == 0`, `tie a = b`; see `Property`.
        places: Where the nodes of a line are; of a program, and not of a stored fingerprint.
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
        """Operator to its number of calls, sorted by name."""
        counts: Counter[str] = Counter()
        for line in self.nodes:
            counts[line.operator] += line.count
        return dict(sorted(counts.items()))


def fingerprint(program: ExportedProgram) -> Fingerprint:
    """Return what a program is, without its weights.

    Repeated modules are folded, so a model of 126 equal blocks takes hardly more room than one of two.
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
        constants=_folded(_constants(identity)),
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
    """Return a digest of where the inputs come from: operators and modules, and names of weights."""
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
    """Yield one line per constant, under its full name."""
    canonical = identity.canonical
    values = {
        port.name: canonical.nodes[port.index].value
        for port in canonical.inputs
        if port.index is not None and port.kind in CONSTANT_KINDS  # Buffers are among the ports.
    }
    for name, content in identity.contents.items():
        yield ConstantLine(1, name, values.get(name, ""), content)


def _folded(constants: Iterable[ConstantLine]) -> tuple[ConstantLine, ...]:
    counts = Counter((star(line.name), line.value, line.content) for line in constants)
    return tuple(ConstantLine(count, *key) for key, count in counts.items())
