"""Check operators in a layer whose experts (`ep=`) or vocabulary rows are divided among the ranks.

A rank numbers its own experts from 0. The program may compare these indices with the rank's number of experts
and select rows with them. The indices must not be used as values: they are different in the unsharded model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from fakexport.exporting.program import operator_name

from .call import Call, Operand, Results
from .counterparts import Counterparts, is_read_from_data, is_same_number, results_of
from .layout import Fault, Layout, NumberFault, Placement
from .shape_rules import SHAPE_RULES
from .value_rules import VALUE_RULES, dims_of, reduced

_COMPARISONS = frozenset({"eq", "ne", "ge", "gt", "le", "lt"})
_BOUNDED = _COMPARISONS | {"histc", "clamp", "clamp_max", "arange", "one_hot"}
_CHOOSING = frozenset(
    {
        *(
            "index",
            "index_select",
            "index_add",
            "index_put",
            "index_copy",
            "gather",
            "scatter",
            "scatter_add",
        ),
        *("embedding", "masked_fill", "where", "_grouped_mm", "grouped_mm", "grouped_mm_fallback"),
    }
)
_CASTS = frozenset({"to", "_to_copy", "float", "type_as"})
_ADDING = frozenset({"index_add", "scatter_add"})


def own_rows(
    call: Call,
    kind: str,
    experts: tuple[int, int] | None,
    counterparts: Counterparts,
    layouts: Mapping[Node, Results],
) -> Layout:
    """Return the layout of the results of an operator that uses only the experts or vocabulary of this rank.

    Args:
        call: The call of the operator.
        kind: Name of the operator.
        experts: Number of experts on the rank and in the model. None if vocabulary rows are divided.
        counterparts: The nodes of the unsharded model.
        layouts: Layouts of all previous nodes.
    Raises:
        Fault: the result may depend on the number or the numbering of a rank's experts.
    """
    if experts is None:
        return Placement.OWN_ROWS
    if is_read_from_data(call.node):
        raise Fault(f"calls {call.name}, which reads a Python number from tensors of a rank's own experts")
    _compare_bounds(call, kind, experts, counterparts, layouts)
    results = (results_of(each.meta.get("val")) for each in (call.node, call.whole))
    if not all(_is_shaped(mine, theirs, experts) for mine, theirs in zip(*results, strict=True)):
        raise NumberFault("has a tensor whose size depends on the number of experts on the rank")
    if _is_integer(call.node):
        return Placement.OWN_ROWS
    ids = [operand for operand in call.operands() if _is_number(operand.node) and not operand.part]
    if ids and kind in _CHOOSING and call.first.layout is Placement.REPLICATE and _is_weight(call.first.node):
        raise Fault("indexes a weight of all experts with indices into the rank's own experts")
    values = {_kind(user) for user in _users(call.node) if not _is_integer(user)} - {"histc"}
    if values and (kind == "histc" or (ids and kind not in _CHOOSING)):
        raise Fault(
            f"calls {call.name}, which computes with integers (indices or counts) of a rank's own experts"
        )
    return _added_up(call, kind, counterparts)


def _compare_bounds(
    call: Call,
    kind: str,
    experts: tuple[int, int],
    counterparts: Counterparts,
    layouts: Mapping[Node, Results],
) -> None:
    """Raise an error unless the number of experts is only used as a bound of expert counts or indices."""
    own, every = experts
    differing = counterparts.differing(call.node)
    bounds = [(str(own - back), str(every - back)) for back in (0, 1)]
    if kind in _BOUNDED:
        call.compared.update(name for name, pair in differing.items() if pair in bounds)
    if kind not in _COMPARISONS or isinstance(call.get("other"), Operand):
        return
    source = call.first.node
    given = source.args[0] if source.args else None
    if _kind(source) == "floor_divide" and isinstance(given, Node) and given not in layouts:
        call.compared.add("other")  # Tests whether the rank has the expert, before renumbering.
    elif _is_number(source) and differing.get("other") not in bounds:
        raise Fault("compares integers (indices or counts) of a rank's own experts with a constant")


def _added_up(call: Call, kind: str, counterparts: Counterparts) -> Layout:
    """Return the layout of a floating point result. A sum over the rows of experts is a partial sum."""
    if kind in _ADDING:
        return Placement.PARTIAL
    if any(operand.layout is Placement.PARTIAL for operand in call.operands()):
        raise Fault("computes with a sum over a rank's own experts before it is added up over the ranks")
    if VALUE_RULES.get(kind) is not reduced:
        return Placement.OWN_ROWS
    source = call.first.node
    mine, theirs = (each.meta["val"].shape for each in (source, counterparts.nodes[source]))
    dims = [dim % len(mine) for dim in dims_of(call, kind, len(mine))]
    is_divided = any(mine[dim] != theirs[dim] for dim in dims)
    if is_divided and kind != "sum":
        raise Fault(f"computes {call.name} over the experts of one rank only")
    return (
        Placement.PARTIAL if kind == "sum" and (is_divided or dims != [len(mine) - 1]) else Placement.OWN_ROWS
    )


def _is_shaped(mine: Any, theirs: Any, experts: tuple[int, int]) -> bool:
    """Return whether all sizes are equal, or differ by the ratio of the rank's experts to all experts."""
    if not isinstance(mine, torch.Tensor):
        return True
    own, every = experts

    def is_divided(one: Any, two: Any) -> bool:
        return isinstance(one, int) and isinstance(two, int) and one * every == two * own

    pairs = zip(mine.shape, theirs.shape, strict=False)
    return mine.ndim == theirs.ndim and all(is_same_number(*each) or is_divided(*each) for each in pairs)


def _is_integer(node: Node) -> bool:
    value = next(iter(results_of(node.meta.get("val"))), None)
    is_real = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    return not is_real


def _is_number(node: Node) -> bool:
    return _is_integer(node) and node.meta["val"].dtype is not torch.bool


def _is_weight(node: Node) -> bool:
    while node.op == "call_function" and _kind(node) in (*SHAPE_RULES, "to", "_to_copy"):
        node = node.all_input_nodes[0]
    return node.op in ("placeholder", "get_attr")


def _users(node: Node) -> Iterator[Node]:
    for user in node.users:
        if user.meta.get("val") is not None or user.op == "output":
            yield from _users(user) if _kind(user) in _CASTS and not _is_integer(user) else (user,)


def _kind(node: Node) -> str:
    return operator_name(node).removeprefix("aten.").partition(".")[0] if node.op == "call_function" else ""
