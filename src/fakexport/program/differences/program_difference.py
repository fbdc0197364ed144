"""The value types of a comparison of two programs, called a and b."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fakexport.diagnostics import Span
from fakexport.program.transfers import Transfer


@dataclass(frozen=True)
class OperatorDifference:
    """An operator that the programs call a different number of times; 0 is never."""

    operator: str
    count_a: int
    count_b: int


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one operator at one source line, over repeated modules.

    Args:
        operator: `aten.mul.Tensor`.
        module_path: Path of the module; an index that varies is a star: `model.layers.*.mlp.experts`.
        span: The user's line, if the nodes have one.
        count: Number of nodes.
        node: Name of the first of them.
    """

    operator: str
    module_path: str
    span: Span | None
    count: int
    node: str


@dataclass(frozen=True)
class NodeChange:
    """One property in which nodes that correspond to each other differ.

    Args:
        nodes: The nodes; span and name are those of the second program.
        field: `dtype`, `shape`, `stride` (of the value), `arguments` (literals other than devices), or
            `value` where the value is not a tensor.
        a: The property in the first program, as text.
        b: The property in the second program.
    """

    nodes: NodeGroup
    field: str
    a: str
    b: str


@dataclass(frozen=True)
class DeviceChange:
    """How many nodes, inputs and weights included, have `device_a` in one and `device_b` in the other."""

    device_a: str
    device_b: str
    count: int


@dataclass(frozen=True)
class ConstantDifference:
    """A constant that is not the same in both programs.

    Args:
        name: `lifted_tensor_0`.
        field: `presence`, `dtype`, `shape`, `stride`, or `value` (compared where both have data).
        a: The property in the first program, as text; "" where there is no such constant.
        b: The property in the second program.
    """

    name: str
    field: str
    a: str
    b: str


@dataclass(frozen=True)
class SignatureDifference:
    """An input, weight or output that is not the same in both programs. Devices are not compared here.

    Args:
        side: `input` or `output`.
        kind: Torch's name for it, in lower case: `parameter`, `user_input`, `buffer_mutation`.
        name: Its name; with stars in the places of indices where several differ in the same way.
        field: `presence`, `dtype`, `shape`, `stride`, `value`, `persistent`, `order` or `structure`.
        a: The property in the first program, as text; "" where there is none.
        b: The property in the second program.
        count: How many differ in this way.
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
    """A symbol with different ranges; symbols are numbered by first use, "" means that there is none."""

    symbol: str
    a: str
    b: str


@dataclass(frozen=True)
class PropertyDifference:
    """Something that the graph does not show and that only one program has.

    Args:
        kind: `weight` (description of an entry of the state dict), `constant` (likewise), `tie`, `memory` (a
            tensor sees writes to another one), `guard`, `call` (names of arguments) or `fact`.
        a: Its text, if the first program has it; else "".
        b: Its text, if the second program has it; else "".
    """

    kind: str
    a: str
    b: str


def operator_differences(a: Mapping[str, int], b: Mapping[str, int]) -> tuple[OperatorDifference, ...]:
    """Return the operators with different numbers of calls, of programs with these numbers, by name."""
    names = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    return tuple(OperatorDifference(name, a.get(name, 0), b.get(name, 0)) for name in names)


def range_differences(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[RangeDifference, ...]:
    """Return the symbols with different ranges, of programs with these ranges, by name."""
    names = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    return tuple(RangeDifference(name, a.get(name, ""), b.get(name, "")) for name in names)


def structure_differences(a: tuple[str, str], b: tuple[str, str]) -> tuple[SignatureDifference, ...]:
    """Return which of the containers of inputs and of outputs differ."""
    sides = zip(("input", "output"), a, b, strict=True)
    return tuple(
        SignatureDifference(side, f"user_{side}", "", "structure", old, new)
        for side, old, new in sides
        if old != new
    )


@dataclass(frozen=True)
class ProgramDifference:
    """What differs between the programs a and b.

    Args:
        is_identical: With equal weights, both compute the same for every input that either accepts: nodes,
            signature, ranges, guards, bits of constants, ties and facts are equal, names of nodes and symbols
            aside.
        is_identical_but_for_devices: The same, if devices are not looked at.
        node_count_a: All nodes of the first program, those of subgraphs included.
        node_count_b: Likewise of the second.
        operators: Operators with different numbers of calls, sorted by name.
        nodes_removed: Calls that only the first program has, in its order.
        nodes_added: Calls that only the second program has, in its order.
        nodes_rewired: Calls that both have, and that take an input from another one of the nodes that both
            have. An added cast or move in between does not count.
        is_reordered: Whether common nodes are in a different order.
        changes: What differs in calls that both have, in the order of the second program.
        devices: Changes of device, the most frequent first.
        transfers_removed: Moves between devices that only the first program makes.
        transfers_added: Moves that only the second makes.
        constants: By name.
        signature: Inputs and outputs, in order.
        ranges: Range constraints.
        properties: What the graph does not show.
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

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        # The one way up, which docs/architecture.md names: what shows programs is above them.
        # The one import that goes up. mypy does not see it: it would take both packages as one cycle, and
        # functions for the modules that are called like them.
        if not TYPE_CHECKING:
            from fakexport.report import program_difference_document, render_in_notebook

            return render_in_notebook(program_difference_document(self))
        return ""

    @property
    def operators_only_in_a(self) -> tuple[str, ...]:
        """Return the names of the operators that the second program never calls."""
        return tuple(operator.operator for operator in self.operators if not operator.count_b)

    @property
    def operators_only_in_b(self) -> tuple[str, ...]:
        """Return the names of the operators that the first program never calls."""
        return tuple(operator.operator for operator in self.operators if not operator.count_a)
