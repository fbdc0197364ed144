"""Find the largest sizes that a model's embedding tables, such as the position table, allow.

`torch.export` does not limit a size because of a lookup. The program accepts a context that is too long for
its position table, and raises an index error at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operators.operator_schema import argument_names
from fakexport._torch.tracing.symbolic_numbers import expression_of, size_value, symbols_of
from fakexport.exporting.program import operator_name


@dataclass(frozen=True)
class TableRead:
    """An embedding table, such as `transformer.wpe.weight`. A dynamic size determines which rows are read.

    `last` is the index of the last row that is read, as an expression of `symbol`. `most` is the largest size
    for which the table has enough rows.
    """

    name: str
    rows: int
    symbol: sympy.Symbol
    last: Any
    most: int

    def row_at(self, size: int) -> int:
        """Return the index of the last row that is read if `symbol` has the given size."""
        return size_value(self.last, {self.symbol.name: size})


def tables_read(program: ExportedProgram) -> Mapping[sympy.Symbol, TableRead]:
    """Map each dynamic size that a table lookup limits to the table with the lowest limit.

    Row indices are tracked from `arange`, and from `cumsum` of a mask (the maximum is the length if there is
    no padding), through additions, reshapes and casts. Indices that are computed in any other way do not
    limit a size.
    """
    found: dict[sympy.Symbol, TableRead] = {}
    for read in _reads(program):
        if read.symbol not in found or read.most < found[read.symbol].most:
            found[read.symbol] = read
    return found


_COUNTED = {"aten.arange.default": "end", "aten.arange.start": "end", "aten.arange.start_step": "end"}
_MASKS = frozenset(
    f"aten.{name}.{kind}"
    for name in ("ne", "eq", "gt", "ge", "lt", "le")
    for kind in ("Scalar", "Tensor")
)  # fmt: skip
_SAME = frozenset(
    f"aten.{name}"
    for name in (
        "unsqueeze.default", "squeeze.default", "squeeze.dim", "expand.default", "view.default",
        "reshape.default", "clone.default", "contiguous.default", "to.dtype", "to.device", "to.dtype_layout",
        "_to_copy.default", "type_as.default", "alias.default", "detach.default", "repeat.default",
        "to.other", "_assert_tensor_metadata.default",
    )
)  # fmt: skip
_OPEN = 2**63 - 1
_LOOKUPS = {"aten.embedding.default": ("weight", "indices"), "aten.index_select.default": ("self", "index")}


def _reads(program: ExportedProgram) -> Iterator[TableRead]:
    """Yield the lookups of the top-level graph whose greatest row index is a linear function of one size."""
    names = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    greatest: dict[Node, Any] = {
        node: sympy.Integer(1)
        for node in program.graph.find_nodes(op="placeholder")
        if node.name.endswith("attention_mask")
    }
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name, given = operator_name(node), _arguments(node)
        bound = _greatest(name, given, greatest)
        if bound is not None:
            greatest[node] = bound
        if name in _LOOKUPS:
            table, index = (given.get(argument) for argument in _LOOKUPS[name])
            if index in greatest and isinstance(table, Node) and table.name in names and not given.get("dim"):
                yield from _bounded(names[table.name], table.meta["val"].shape[0], greatest[index])


def _arguments(node: Node) -> dict[str, Any]:
    if not hasattr(node.target, "_schema"):
        return {}
    return {**dict(zip(argument_names(node.target), node.args, strict=False)), **node.kwargs}


def _greatest(name: str, given: Mapping[str, Any], known: Mapping[Node, Any]) -> Any:
    """Return the maximum element of an operator's result as an expression, or None if it is unknown."""
    if name in _COUNTED:
        is_plain = given.get("step", 1) == 1
        return _number(given["end"]) - 1 if is_plain and _number(given["end"]) is not None else None
    if name in _MASKS:
        return sympy.Integer(1)
    source = given.get("self")
    if not isinstance(source, Node) or (bound := known.get(source)) is None:
        return None
    if name in _SAME:
        return bound
    if name in ("aten.add.Tensor", "aten.sub.Tensor") and given.get("alpha", 1) == 1:
        other = _number(given.get("other"))
        return None if other is None else bound + other if "add" in name else bound - other
    if name == "aten.slice.Tensor":
        return bound if given.get("end", _OPEN) == _OPEN and given.get("step", 1) == 1 else None
    if name == "aten.mul.Tensor":
        other = known.get(given["other"]) if isinstance(given["other"], Node) else None
        return bound if other == 1 else other if bound == 1 else None
    if name == "aten.cumsum.default" and bound == 1:
        return _number(source.meta["val"].shape[given["dim"]])
    return None


def _number(value: Any) -> Any:
    """Return an int or SymInt as a sympy expression, or None for anything else."""
    value = value.meta.get("val") if isinstance(value, Node) else value
    if isinstance(value, torch.SymInt):
        return expression_of(value)
    return sympy.Integer(value) if isinstance(value, int) else None


def _bounded(name: str, rows: Any, last: Any) -> Iterator[TableRead]:
    symbols = symbols_of(last)
    if not isinstance(rows, int) or len(symbols) != 1:
        return
    (symbol,) = symbols
    slope = sympy.expand(last).coeff(symbol)
    rest = sympy.expand(last - slope * symbol)
    if slope.is_Integer and slope > 0 and rest.is_Integer:
        yield TableRead(name, rows, symbol, last, int((rows - 1 - rest) // slope))
