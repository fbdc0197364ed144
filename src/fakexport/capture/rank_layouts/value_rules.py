"""Operators that compute with values: element by element, along a dimension, by index, and between ranks."""

from __future__ import annotations

from collections.abc import Sequence

from .call import Call, Operand, Results, cut_of
from .layout import Common, Cut, Fault, Layout
from .shape_rules import alike

_KEEP_SUMS = frozenset({"aten.mul", "aten.div", "aten.neg", "aten.masked_fill"})
_ADD = frozenset({"aten.add", "aten.sub", "aten.rsub"})


def elementwise(call: Call) -> Layout:
    """Return the layout of what is computed for each element by itself."""
    operands, rank = list(call.operands()), len(call.sizes)
    cut = next((operand for operand in operands if isinstance(operand.layout, Cut)), None)
    if cut is None:
        return _summed(call, operands)
    layout = cut_of(cut)
    dim = layout.dim + rank - len(cut.sizes)
    for operand in operands:
        at = dim - rank + len(operand.sizes)
        is_alike = at < 0 or operand.is_same_along(at)
        if operand.layout is Common.SUM:
            raise Fault("combines a rank's part with a summand of another tensor")
        if operand.part and operand.cut_at(at) != layout.part:
            raise Fault("combines parts of ranks that are not sharded alike")
        if not operand.part and not is_alike and operand.layout is not Common.FILL:
            raise Fault("combines a rank's part with a tensor that is not sharded alike")
    return Cut(dim, layout.part)


def _summed(call: Call, operands: Sequence[Operand]) -> Layout:
    layouts = [operand.layout for operand in operands]
    if Common.SUM not in layouts:
        return alike(operands)
    name = call.name
    if name in _ADD and len(operands) == 2 and set(layouts) == {Common.SUM}:
        return Common.SUM
    is_first = layouts[0] is Common.SUM and layouts.count(Common.SUM) == 1
    if name == "aten.mul" and layouts.count(Common.SUM) == 1:
        return Common.SUM
    if name in _KEEP_SUMS and is_first and (name != "aten.masked_fill" or call.get("value") == 0):
        return Common.SUM
    if name in _ADD:
        raise Fault("adds to one rank's summand what every rank has in full, which would count several times")
    raise Fault(f"computes {name} of one rank's summand, before all are added up (all_reduce)")


def reduced(call: Call) -> Results:
    """Return the layouts after something along dimensions, none of which may be sharded."""
    source = call.first
    count = len(call.results)
    name = call.name.removeprefix("aten.")
    if source.layout is Common.SUM:
        if name in ("sum", "mean"):
            return Common.SUM
        raise Fault(f"computes {name} of one rank's summand, before all are added up (all_reduce)")
    layout = cut_of(source)
    rank = len(source.sizes)
    dims = [dim % rank for dim in dims_of(call, name, rank)]
    if layout.dim in dims:
        if name == "sum":
            return Common.SUM
        raise Fault(f"computes {name} along a dimension of which the rank has a part")
    for other in list(call.operands())[1:]:
        if other.layout not in (Common.WHOLE, Common.FILL):
            raise Fault("combines parts of ranks that are not sharded alike")
    is_kept = len(call.sizes) == rank
    made = Cut(layout.dim - (0 if is_kept else sum(dim < layout.dim for dim in dims)), layout.part)
    return [made] * count if count > 1 else made


def dims_of(call: Call, name: str, rank: int) -> Sequence[int]:
    if name in ("layer_norm", "rms_norm", "native_layer_norm"):
        return range(rank - len(call.get("normalized_shape")), rank)
    if name in ("tril", "triu"):
        return range(rank - 2, rank)
    given = call.get("dim", "dims")
    if given is None:
        return (-1,) if name in ("topk", "sort") else range(rank)
    return list(given) if isinstance(given, list) else [given]


def indexed(call: Call) -> Layout:
    """Return the layout of rows that tensors of indices choose."""
    source = call.first
    raw = call.get("indices")
    indices = list(raw) if isinstance(raw, list) else []
    chosen = [dim for dim, index in enumerate(indices) if isinstance(index, Operand)]
    if any(indices[dim].layout is not Common.WHOLE for dim in chosen):
        raise Fault("chooses rows by indices of which the rank has a part")
    if not isinstance(source.layout, Cut):
        return source.layout
    dim, more = source.layout.dim, len(call.sizes) - len(source.sizes) + len(chosen)
    if dim in chosen:
        raise Fault("chooses elements of a dimension of which the rank has a part")
    if len(call.sizes) < len(source.sizes) - len(chosen) or not chosen:
        raise Fault("chooses elements in a way that no rule follows")
    is_together = chosen == list(range(chosen[0], chosen[-1] + 1))
    before = sum(other < dim for other in chosen)
    is_moved = not is_together or dim > chosen[0]
    return Cut(dim - before + (more if is_moved else 0), source.layout.part)


def looked_up(call: Call) -> Layout:
    """Return the layout of embeddings; of a range of the vocabulary only what is masked is a summand."""
    weight, index = call.get("weight"), call.get("indices")
    if isinstance(weight.layout, Cut) and isinstance(index, Operand) and index.layout is Common.WHOLE:
        if weight.layout.dim == 1:
            return Cut(len(call.sizes) - 1, weight.layout.part)
        if "masked_fill" in str(index.node.target):
            return Common.OWN_ROWS
    raise Fault("looks up a range of the vocabulary as if it were all of it")


def picked(call: Call) -> Layout:
    """Return the layout of rows that one tensor of indices chooses along a dimension."""
    source = call.first
    others = list(call.operands())[1:]
    layout = cut_of(source)
    if call.get("dim") % len(source.sizes) == layout.dim:
        raise Fault("chooses elements of a dimension of which the rank has a part")
    for other in others:
        is_chosen = call.name == "aten.index_select" and other.layout is Common.WHOLE
        if other.layout != layout and not is_chosen:
            raise Fault("chooses elements by indices that are not sharded alike")
    return layout


def exchanged(call: Call) -> Layout:
    """Return the layout after a collective: every rank has the whole result."""
    layout = call.first.layout
    call.compared.add("group_size")
    if call.name.endswith("wait_tensor"):
        return layout
    if call.name.endswith("all_reduce") and layout in (Common.SUM, Common.OWN_ROWS):
        return Common.WHOLE
    if call.name.endswith("all_gather_into_tensor"):
        if layout is Common.PARTS:
            return layout
        if isinstance(layout, Cut) and len(layout.part.ranges) == 1 and layout.dim == len(call.sizes) - 1:
            return Common.PARTS
        raise Fault("gathers what is not a part of the last dimension")
    if layout in (Common.WHOLE, Common.FILL):
        raise Fault(f"adds up over {call.ranks} ranks what each of them has in full")
    raise Fault("adds up parts of ranks, which are not summands")


VALUE_RULES = {
    **dict.fromkeys(
        (
            *("sum", "mean", "amax", "amin", "softmax", "_softmax", "log_softmax", "logsumexp", "var", "std"),
            *("linalg_vector_norm", "norm", "cumsum", "cumprod", "argmax", "argmin", "max", "min", "topk"),
            *("sort", "argsort", "any", "all", "prod", "layer_norm", "native_layer_norm", "rms_norm", "flip"),
            *("roll", "tril", "triu"),
        ),
        reduced,
    ),
    "index": indexed,
    "embedding": looked_up,
    **dict.fromkeys(("gather", "index_select"), picked),
}
