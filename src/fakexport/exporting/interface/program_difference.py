"""Data types for the comparison of two programs, called a and b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fakexport.rules.diagnostics import Span


@dataclass(frozen=True)
class Transfer:
    """A move of one tensor between devices that happens in each run of the program.

    Args:
        node: Name of the graph node.
        operator: Name of the operator, such as `aten.to.device`.
        source: The old device of the tensor.
        target: The new device of the tensor.
        dtype: Dtype of the result. torch converts the tensor before moving it.
        shape: Shape of the result, sizes as text: `("s77", "4096")`.
        bytes: Bytes of the result. Symbolic sizes are evaluated for the example inputs. None if a size is
            unbacked, because the example inputs do not determine it.
        bytes_expression: Bytes as an expression of the program's symbols, such as `16384*s77`. None if all
            sizes are static.
        span: The user's line, if the node has one.
        module_path: Path of the module that moves the tensor.
        graph: Name of the subgraph that contains the node, or "" for the main graph.
        index: Position of the node in the order of execution, starting at 0.
    """

    node: str
    operator: str
    source: str
    target: str
    dtype: str
    shape: tuple[str, ...]
    bytes: int | None
    bytes_expression: str | None
    span: Span | None
    module_path: str
    graph: str
    index: int


@dataclass(frozen=True)
class OperatorDifference:
    """An operator that the programs call a different number of times.

    Args:
        operator: Name of the operator, such as `aten.bmm.default`.
        count_a, count_b: Number of calls in each program.
    """

    operator: str
    count_a: int
    count_b: int


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one operator at one source line, across repeated modules.

    Args:
        operator: Name of the operator, such as `aten.mul.Tensor`.
        module_path: Path of the module, with a star for an index that varies: `model.layers.*.mlp.experts`.
        span: The user's line, if the nodes have one.
        count: Number of nodes.
        node: Name of the first node.
    """

    operator: str
    module_path: str
    span: Span | None
    count: int
    node: str


@dataclass(frozen=True)
class NodeChange:
    """A property in which corresponding nodes differ.

    Args:
        nodes: The nodes, with span and name from the second program.
        field: `dtype`, `shape` or `stride` of the value, `arguments` (literals other than devices), or
            `value` for a value that is not a tensor.
        a: The property in the first program, as text.
        b: The property in the second program.
    """

    nodes: NodeGroup
    field: str
    a: str
    b: str


@dataclass(frozen=True)
class DeviceChange:
    """Nodes, inputs and weights that are on one device in program a and on a different device in program b.

    Args:
        device_a, device_b: The device in each program.
        count: Number of these nodes, inputs and weights.
    """

    device_a: str
    device_b: str
    count: int


@dataclass(frozen=True)
class ConstantDifference:
    """A constant that differs between the programs.

    Args:
        name: Name of the constant, such as `lifted_tensor_0`.
        field: `presence`, `dtype`, `shape`, `stride`, or `value` (compared if both constants have data).
        a: The property in the first program, as text. "" if the program has no such constant.
        b: The property in the second program.
    """

    name: str
    field: str
    a: str
    b: str


@dataclass(frozen=True)
class SignatureDifference:
    """An input, weight or output that differs between the programs. Devices are not compared here.

    Args:
        side: `input` or `output`.
        kind: torch's name for the kind, in lowercase: `parameter`, `user_input`, `buffer_mutation`.
        name: The name of the input, weight or output. If several differ in the same way, stars replace the
            indices in their names.
        field: `presence`, `dtype`, `shape`, `stride`, `value`, `persistent`, `order` or `structure`.
        a: The property in the first program, as text. "" if there is none.
        b: The property in the second program.
        count: Number of inputs, weights or outputs that differ in this way.
    """

    side: str
    kind: str
    name: str
    field: str
    a: str
    b: str
    count: int = 1


@dataclass(frozen=True)
class RangeDifference:
    """A symbol with different ranges.

    Args:
        symbol: Canonical name of the symbol. Symbols are numbered by first use.
        a, b: The range in each program, as text. "" if the program does not have the symbol.
    """

    symbol: str
    a: str
    b: str


@dataclass(frozen=True)
class PropertyDifference:
    """A property that is not visible in the graph and that only one program has.

    Args:
        kind: `weight` (metadata of an entry of the state dict), `constant` (metadata of a constant), `tie`,
            `memory` (tensors share memory that the program writes to), `guard`, `call` (names of
            arguments) or `fact`.
        a: The text of the property if the first program has it; otherwise "".
        b: The text of the property if the second program has it; otherwise "".
    """

    kind: str
    a: str
    b: str


def operator_differences(a: Mapping[str, int], b: Mapping[str, int]) -> tuple[OperatorDifference, ...]:
    """Return the operators with different numbers of calls, sorted by name."""
    names = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    return tuple(OperatorDifference(name, a.get(name, 0), b.get(name, 0)) for name in names)


def range_differences(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[RangeDifference, ...]:
    """Return the symbols with different ranges, sorted by name."""
    names = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    return tuple(RangeDifference(name, a.get(name, ""), b.get(name, "")) for name in names)


def structure_differences(a: tuple[str, str], b: tuple[str, str]) -> tuple[SignatureDifference, ...]:
    """Return the differences in the containers of inputs and of outputs."""
    sides = zip(("input", "output"), a, b, strict=True)
    return tuple(
        SignatureDifference(side, f"user_{side}", "", "structure", old, new)
        for side, old, new in sides
        if old != new
    )


@dataclass(frozen=True)
class ProgramDifference:
    """Differences between the programs a and b.

    Args:
        is_identical: Whether both programs accept the same inputs and return the same results with equal
            weights. This means that nodes, signature, ranges, guards, bits of constants, ties and facts are
            equal, except for the names of nodes and symbols.
        is_identical_but_for_devices: The same as `is_identical`, but devices are ignored.
        node_count_a: Number of nodes in the first program, including subgraphs.
        node_count_b: The same for the second program.
        operators: Operators with different numbers of calls, sorted by name.
        nodes_removed: Calls that only the first program has, in its node order.
        nodes_added: Calls that only the second program has, in its node order.
        nodes_rewired: Calls in both programs that take an input from different nodes. A cast or move that
            was added in between is ignored.
        is_reordered: Whether common nodes are in a different order.
        changes: Differences in calls that both programs have, in the order of the second program.
        devices: Changes of device, the most frequent first.
        transfers_removed: Moves of tensors between devices that only the first program makes.
        transfers_added: Moves of tensors between devices that only the second program makes.
        constants: Differences in constants, sorted by name.
        signature: Differences in inputs and outputs, in order.
        ranges: Differences in range constraints.
        properties: Differences that are not visible in the graph.
    """

    is_identical: bool
    is_identical_but_for_devices: bool
    node_count_a: int
    node_count_b: int
    operators: tuple[OperatorDifference, ...] = ()
    nodes_removed: tuple[NodeGroup, ...] = ()
    nodes_added: tuple[NodeGroup, ...] = ()
    nodes_rewired: tuple[NodeGroup, ...] = ()
    is_reordered: bool = False
    changes: tuple[NodeChange, ...] = ()
    devices: tuple[DeviceChange, ...] = ()
    transfers_removed: tuple[Transfer, ...] = ()
    transfers_added: tuple[Transfer, ...] = ()
    constants: tuple[ConstantDifference, ...] = ()
    signature: tuple[SignatureDifference, ...] = ()
    ranges: tuple[RangeDifference, ...] = ()
    properties: tuple[PropertyDifference, ...] = ()
