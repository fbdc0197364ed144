"""Convert a program to a form that can be compared between processes, machines and exports.

Node names, memory addresses, source paths and torch's symbol names depend on how a program was created, so
they are omitted. Everything that determines the program's results is included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputSpec, OutputKind, OutputSpec
from torch.fx import GraphModule, Node

from fakexport.exporting.program.constant_content import content_of
from fakexport.exporting.program.marked_text import DEVICE_MARK, NODE_MARK, MarkedText, fill, plain_repr
from fakexport.exporting.program.node_names import operator_name
from fakexport.exporting.program.output_names import output_names
from fakexport.exporting.program.tensor_spec import Spelling, TensorSpec, symbol_ranges
from fakexport.exporting.program.walk import Visit, attribute, walk
from fakexport.rules.diagnostics import Span

# The messages of these operators contain node names and symbols. The condition is a separate argument.
_WITH_MESSAGE = frozenset({"aten._assert_scalar.default", "aten._assert_async.msg"})


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The position of a node in a program. Unlike `Visit`, it does not refer to the program itself.

    Args:
        index: Position of the node in the order of execution.
        name: Name of the node in the graph.
        module_path, span: As for a `Visit`.
        depth: Number of enclosing subgraphs.
    """

    index: int
    name: str
    module_path: str
    span: Span | None
    depth: int


@dataclass(frozen=True, slots=True)
class MarkedLine:
    """A line of text in which a mark replaces each device. `str()` inserts the devices.

    Args:
        text: The text with marks.
        devices: The device to insert at each mark.
    """

    text: str
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return fill(self.text, DEVICE_MARK, self.devices)


@dataclass(frozen=True, slots=True)
class CanonicalNode:
    """A node in canonical form.

    Args:
        place: The position of the node.
        is_call: Whether the node calls an operator. False for inputs, outputs and references to subgraphs.
        operator: Name of the operator, such as `aten.linear.default`; or `placeholder`, `get_attr`, `output`.
        template: The arguments as text, with marks instead of nodes and devices.
        references: The index of the node at each node mark.
        literal_devices: The device at each device mark.
        result: The value of the node as text, with marks instead of devices.
        result_devices: The device at each mark in `result`.
        tensors: The tensors in the value of the node, in order.
    """

    place: NodePlace
    is_call: bool
    operator: str
    template: str
    references: tuple[int, ...]
    literal_devices: tuple[str, ...]
    result: str
    result_devices: tuple[str, ...]
    tensors: tuple[TensorSpec, ...]

    @property
    def line(self) -> MarkedLine:
        """The whole node as text: `%4 = aten.linear.default(%3, %1) -> float32[s0, 4]{4, 1} cuda:0`"""
        arguments = fill(self.template, NODE_MARK, (f"%{reference}" for reference in self.references))
        start = f"{'  ' * self.place.depth}%{self.place.index} = {self.operator}"
        return MarkedLine(
            f"{start}{arguments} -> {self.result}", (*self.literal_devices, *self.result_devices)
        )

    @property
    def literals(self) -> str:
        """The arguments without nodes and devices: `(%, %, dtype=torch.float32, device=device(*))`."""
        return self.template.replace(NODE_MARK, "%").replace(DEVICE_MARK, "*")

    @property
    def value(self) -> str:
        """The value as text: `float32[s0, 4]{4, 1} cuda:0`. The numbers in braces are strides."""
        return fill(self.result, DEVICE_MARK, self.result_devices)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the program's signature.

    Args:
        kind: torch's name for the kind: `PARAMETER`, `USER_INPUT`, `BUFFER_MUTATION`.
        name: Full name of a weight, name of an argument, or path of an output, such as `logits`.
        index: Index of the node, or None for a constant output.
        constant: The value of a constant as text. None if the value is computed or passed.
        is_persistent: For a buffer, whether checkpoints contain it; otherwise None.
    """

    kind: str
    name: str
    index: int | None
    constant: str | None
    is_persistent: bool | None = None


@dataclass(frozen=True)
class CanonicalProgram:
    """Everything in a program that can be compared.

    Args:
        nodes: The nodes in the order of execution, by index. Nodes of a subgraph follow the node that runs
            it.
        inputs: Weights, buffers, constants and user inputs, in order.
        outputs: Mutations and user outputs, in order.
        structures: The container structures of the inputs and of the outputs.
        ranges: The range of each symbol as text, such as `[2, 4096]`, sorted by symbol.
    """

    nodes: tuple[CanonicalNode, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    structures: tuple[str, str]
    ranges: Mapping[str, str]

    @property
    def signature(self) -> tuple[str, ...]:
        """A line for each output, then two lines for the structures. Inputs are omitted: they are nodes."""
        outputs = (
            f"output {position} {port.kind} {port.name!r} = "
            + (f"%{port.index}" if port.constant is None else port.constant)
            for position, port in enumerate(self.outputs)
        )
        return (*outputs, f"inputs {self.structures[0]}", f"outputs {self.structures[1]}")

    @property
    def lines(self) -> tuple[MarkedLine, ...]:
        """A line for each node, then the lines of the signature, then a line for each symbol range."""
        ranges = (f"{symbol} in {bounds}" for symbol, bounds in self.ranges.items())
        return (*(node.line for node in self.nodes), *map(MarkedLine, (*self.signature, *ranges)))


def canonicalise(program: ExportedProgram) -> CanonicalProgram:
    """Convert a program to its canonical form. This takes about 0.5 s for 10,000 nodes."""
    reading = _Reading(program)
    nodes = tuple(reading.node(visit) for visit in walk(program))
    ranges = symbol_ranges(program, reading.spelling)
    structure = program.call_spec
    return CanonicalProgram(
        nodes=nodes,
        inputs=tuple(reading.inputs()),
        outputs=tuple(reading.outputs()),
        structures=(plain_repr(structure.in_spec), plain_repr(structure.out_spec)),
        ranges={symbol: f"[{bounds.lower}, {bounds.upper}]" for symbol, bounds in ranges.items()},
    )


class _Reading:
    """The state of a conversion: the numbers assigned to nodes, subgraphs and symbols."""

    def __init__(self, program: ExportedProgram) -> None:
        self.spelling = Spelling(is_canonical=True)
        self._program = program
        self._specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self._main_indices: dict[str, int] = {}
        self._indices: dict[Node, int] = {}
        self._subgraphs: dict[GraphModule, int] = {}

    def node(self, visit: Visit) -> CanonicalNode:
        self._indices[visit.node] = visit.index
        if visit.caller is None:
            self._main_indices[visit.node.name] = visit.index
        arguments = MarkedText(self.spelling, self._subgraphs)
        value = MarkedText(self.spelling, self._subgraphs)
        return CanonicalNode(
            place=_place(visit),
            is_call=visit.node.op == "call_function",
            operator=operator_name(visit.node),
            template=f"({', '.join(self._arguments(visit, arguments))})",
            references=tuple(self._indices[source] for source in arguments.nodes),
            literal_devices=tuple(arguments.devices),
            result=value.of(None if visit.node.op == "output" else visit.node.meta.get("val")),
            result_devices=tuple(value.devices),
            tensors=tuple(value.tensors),
        )

    def _arguments(self, visit: Visit, text: MarkedText) -> Iterator[str]:
        node = visit.node
        if node.op == "placeholder":
            if visit.caller is None and node.name in self._specs:
                yield _input_text(self._specs[node.name])
        elif node.op == "get_attr":
            held = attribute(visit.owner, str(node.target))
            yield text.of(held) if isinstance(held, GraphModule) else content_of(held)
        else:
            has_message = operator_name(node) in _WITH_MESSAGE

            def shown(value: Any) -> str:
                return "'...'" if has_message and isinstance(value, str) else text.of(value)

            yield from map(shown, node.args)
            yield from (f"{name}={shown(value)}" for name, value in node.kwargs.items())

    def inputs(self) -> Iterator[Port]:
        for spec in self._specs.values():
            yield self._port(spec, _input_name(spec), spec.persistent)

    def outputs(self) -> Iterator[Port]:
        names = iter(output_names(self._program))
        for spec in self._program.graph_signature.output_specs:
            is_returned = spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
            name = next(names, "") if is_returned else (spec.target or "")
            yield self._port(spec, name)

    def _port(self, spec: InputSpec | OutputSpec, name: str, is_persistent: bool | None = None) -> Port:
        index = self._main_indices.get(spec.arg.name)
        return Port(spec.kind.name, name, index, _constant(spec), is_persistent)


def _input_text(spec: InputSpec) -> str:
    constant = _constant(spec)
    text = f"{spec.kind.name} {_input_name(spec)!r}" + (f" = {constant}" if constant else "")
    return text if spec.persistent is None else f"{text} persistent={spec.persistent}"


def _input_name(spec: InputSpec) -> str:
    return spec.target or spec.arg.name


def _constant(spec: InputSpec | OutputSpec) -> str | None:
    return plain_repr(spec.arg.value) if isinstance(spec.arg, ConstantArgument) else None


def _place(visit: Visit) -> NodePlace:
    return NodePlace(visit.index, visit.name, visit.module_path, visit.span, _depth(visit))


def _depth(visit: Visit) -> int:
    return 0 if visit.caller is None else 1 + _depth(visit.caller)
