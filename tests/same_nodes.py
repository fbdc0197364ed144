"""Where the `canonical_lines` of two programs differ, node for node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

from torch.export import ExportedProgram

from fakexport.program.canonical import CanonicalNode, CanonicalProgram, canonicalise


@dataclass(frozen=True)
class Mismatch:
    """One thing in which two programs differ at the same place.

    Args:
        field: `node_count`, `operator`, `arguments` (with literals, devices and keyword order), `value`
            (shape, strides, dtype, device), `caller` (the node that runs the subgraph), `signature`, `range`.
        a: What the first program has; "" where it has nothing.
        b: What the second program has; "" where it has nothing.
        index: Position of the node in the order of execution; None for what is not a node.
        node_a: Name of the node in the first program, for looking it up.
        node_b: Name of the node in the second program.
    """

    field: str
    a: str
    b: str
    index: int | None = None
    node_a: str = ""
    node_b: str = ""


def nodes_equal(a: ExportedProgram, b: ExportedProgram, *, limit: int = 50) -> tuple[Mismatch, ...]:
    """Compare two programs at equal positions; returns what differs, nothing if they are the same.

    The strictest comparison: operators, argument structure, keyword order, literals with devices, shapes,
    strides, dtypes, signature with the names of weights, inputs and outputs, range constraints. Names of
    nodes and of symbols are not compared. After an added node every later position differs; `diff` says
    what was added.

    Args:
        a: Not changed.
        b: Not changed.
        limit: Greatest number of mismatches to return.
    """
    return tuple(islice(_mismatches(canonicalise(a), canonicalise(b)), limit))


def _mismatches(a: CanonicalProgram, b: CanonicalProgram) -> Iterator[Mismatch]:
    if len(a.nodes) != len(b.nodes):
        yield Mismatch("node_count", str(len(a.nodes)), str(len(b.nodes)))
    for node_a, node_b in zip(a.nodes, b.nodes, strict=False):
        for field, text_a, text_b in _fields(node_a, node_b):
            if text_a != text_b:
                names = (node_a.place.name, node_b.place.name)
                yield Mismatch(field, text_a, text_b, node_a.place.index, *names)
    for line_a, line_b in zip_longest(a.signature, b.signature, fillvalue=""):
        if line_a != line_b:
            yield Mismatch("signature", line_a, line_b)
    for symbol in sorted(a.ranges.keys() | b.ranges.keys()):
        if a.ranges.get(symbol) != b.ranges.get(symbol):
            yield Mismatch("range", _range(symbol, a), _range(symbol, b))


def _range(symbol: str, program: CanonicalProgram) -> str:
    return f"{symbol} in {program.ranges[symbol]}" if symbol in program.ranges else ""


def _fields(a: CanonicalNode, b: CanonicalNode) -> Iterator[tuple[str, str, str]]:
    yield "operator", a.operator, b.operator
    yield "arguments", a.arguments, b.arguments
    yield "value", a.value, b.value
    yield "caller", str(a.place.caller), str(b.place.caller)
