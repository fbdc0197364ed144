"""A program in a form that two processes, machines or exports can compare.

Node names, memory addresses, source paths and torch's symbol names depend on how a program came about
and are left out; everything that decides what the program computes is in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputSpec, OutputKind, OutputSpec
from torch.fx import GraphModule, Node

from fakexport.diagnostics import Span
from fakexport.program.constant_content import content_of
from fakexport.program.marked_text import DEVICE_MARK, NODE_MARK, MarkedText, fill, plain_repr
from fakexport.program.node_names import operator_name
from fakexport.program.output_names import output_names
from fakexport.program.tensor_spec import Spelling, TensorSpec, symbol_ranges
from fakexport.program.walk import Visit, attribute, walk

# Their messages quote node names and torch's symbols; what they assert is another argument.
_WITH_MESSAGE = frozenset({"aten._assert_scalar.default", "aten._assert_async.msg"})


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node is; a value, unlike `Visit`.

    Args:
        index: Its position in the order of execution.
        name: Its name in the graph.
        module_path, span: As of a `Visit`.
        caller: Index of the node that runs its subgraph; None in the main graph.
        depth: Number of subgraphs around it.
    """

    index: int
    name: str
    module_path: str
    span: Span | None
    caller: int | None
    depth: int


@dataclass(frozen=True, slots=True)
class MarkedLine:
    """A line of text with marks in the places of devices; `str` fills them in.

    Args:
        text: With marks.
        devices: Device at each mark.
    """

    text: str
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return fill(self.text, DEVICE_MARK, self.devices)


@dataclass(frozen=True, slots=True)
class CanonicalNode:
    """One node without its name.

    Args:
        place: Where it is.
        is_call: Whether it calls an operator, as opposed to inputs, outputs and references to subgraphs.
        operator: `aten.linear.default`, `placeholder`, `get_attr`, `output`.
        template: Its arguments as text, with marks in the places of nodes and devices.
        references: Index of the node at each node mark.
        literal_devices: Device at each device mark.
        result: Its value as text, with marks in the places of devices.
        result_devices: Device at each mark.
        tensors: The tensors of its value, in order.
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
    def arguments(self) -> str:
        """Its arguments: `(%3, %1, dtype=torch.float32, device=device(cuda:0))`."""
        with_nodes = fill(self.template, NODE_MARK, (f"%{reference}" for reference in self.references))
        return fill(with_nodes, DEVICE_MARK, self.literal_devices)

    @property
    def line(self) -> MarkedLine:
        """All of it: `%4 = aten.linear.default(%3, %1) -> float32[s0, 4]{4, 1} cuda:0`."""
        arguments = fill(self.template, NODE_MARK, (f"%{reference}" for reference in self.references))
        start = f"{'  ' * self.place.depth}%{self.place.index} = {self.operator}"
        return MarkedLine(
            f"{start}{arguments} -> {self.result}", (*self.literal_devices, *self.result_devices)
        )

    @property
    def literals(self) -> str:
        """Its arguments without nodes and devices: `(%, %, dtype=torch.float32, device=device(*))`."""
        return self.template.replace(NODE_MARK, "%").replace(DEVICE_MARK, "*")

    @property
    def value(self) -> str:
        """Its value: `float32[s0, 4]{4, 1} cuda:0`; the numbers in braces are strides."""
        return fill(self.result, DEVICE_MARK, self.result_devices)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output as the signature names it.

    Args:
        kind: Torch's name for it: `PARAMETER`, `USER_INPUT`, `BUFFER_MUTATION`.
        name: Full name of a weight, name of an argument, path of an output (`logits`).
        index: Index of the node that holds it; None for a constant output.
        constant: Text of a constant's value; None where the value is computed or passed.
        is_persistent: Whether checkpoints hold it, for a buffer; None for all else.
    """

    kind: str
    name: str
    index: int | None
    constant: str | None
    is_persistent: bool | None = None


@dataclass(frozen=True)
class CanonicalProgram:
    """Everything of a program that can be compared.

    Args:
        nodes: In the order of execution, by index; those of a subgraph after the node that runs it.
        inputs: Weights, buffers, constants and user inputs, in order.
        outputs: Mutations and user outputs, in order.
        structures: The containers of the inputs and of the outputs.
        ranges: Symbol to its range as text, `[2, 4096]`, sorted.
    """

    nodes: tuple[CanonicalNode, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    structures: tuple[str, str]
    ranges: Mapping[str, str]

    @property
    def signature(self) -> tuple[str, ...]:
        """One line per output and two for the structures; inputs have nodes, and so lines, of their own."""
        outputs = (
            f"output {position} {port.kind} {port.name!r} = "
            + (f"%{port.index}" if port.constant is None else port.constant)
            for position, port in enumerate(self.outputs)
        )
        return (*outputs, f"inputs {self.structures[0]}", f"outputs {self.structures[1]}")

    @property
    def lines(self) -> tuple[MarkedLine, ...]:
        """A line per node, then per output, then per symbol range."""
        ranges = (f"{symbol} in {bounds}" for symbol, bounds in self.ranges.items())
        return (*(node.line for node in self.nodes), *map(MarkedLine, (*self.signature, *ranges)))


def canonical_lines(program: ExportedProgram) -> tuple[str, ...]:
    """Return the program as text: a line per node, then per output, then per symbol range.

    Two programs are the same, names of nodes aside, exactly if their lines are the same. The lines are
    equal between processes and machines for one version of torch. Weights and constants appear with
    shape, strides, dtype and device, not with values.

    Example:
        >>> canonical_lines(program)[3]
        '%3 = aten.linear.default(%2, %0, %1) -> float32[s0, 4]{4, 1} cuda:0'
    """
    return tuple(map(str, canonicalise(program).lines))


def canonicalise(program: ExportedProgram) -> CanonicalProgram:
    """Read a program into its canonical form; takes about 0.5 s for 10,000 nodes."""
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
    """What is known while one program is read: the numbers of its nodes, subgraphs and symbols."""

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
    caller = None if visit.caller is None else visit.caller.index
    return NodePlace(visit.index, visit.name, visit.module_path, visit.span, caller, _depth(visit))


def _depth(visit: Visit) -> int:
    return 0 if visit.caller is None else 1 + _depth(visit.caller)
