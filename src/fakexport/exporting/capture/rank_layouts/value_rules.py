"""Layout rules for operators that compute: elementwise, along a dimension, by index, and across ranks."""

from __future__ import annotations

from collections.abc import Sequence

from .call import Call, Operand, Results, cut_of
from .layout import Fault, Layout, Placement, Shard
from .shape_rules import alike

_KEEP_SUMS = frozenset({"aten.mul", "aten.div", "aten.neg", "aten.masked_fill"})
_ADD = frozenset({"aten.add", "aten.sub", "aten.rsub"})


def elementwise(call: Call) -> Layout:
    """Return the layout of elementwise results."""
    operands, rank = list(call.operands()), len(call.sizes)
    cut = next((operand for operand in operands if isinstance(operand.layout, Shard)), None)
    if cut is None:
        return _summed(call, operands)
    layout = cut_of(cut)
    dim = layout.dim + rank - len(cut.sizes)
    for operand in operands:
        at = dim - rank + len(operand.sizes)
        is_alike = at < 0 or operand.is_same_along(at)
        if operand.layout is Placement.PARTIAL:
            raise Fault("combines a shard with a partial sum of another tensor")
        if operand.part and operand.cut_at(at) != layout.part:
            raise Fault("combines tensors that are sharded in different ways")
        if not operand.part and not is_alike and operand.layout is not Placement.FILL:
            raise Fault("combines a shard with a tensor that is not sharded the same way")
    return Shard(dim, layout.part)


def _summed(call: Call, operands: Sequence[Operand]) -> Layout:
    layouts = [operand.layout for operand in operands]
    if Placement.PARTIAL not in layouts:
        return alike(operands)
    name = call.name
    if name in _ADD and len(operands) == 2 and set(layouts) == {Placement.PARTIAL}:
        return Placement.PARTIAL
    is_first = layouts[0] is Placement.PARTIAL and layouts.count(Placement.PARTIAL) == 1
    if name == "aten.mul" and layouts.count(Placement.PARTIAL) == 1:
        return Placement.PARTIAL
    if name in _KEEP_SUMS and is_first and (name != "aten.masked_fill" or call.get("value") == 0):
        return Placement.PARTIAL
    if name in _ADD:
        raise Fault(
            "adds a replicated tensor to a partial sum: the sum over the ranks would count it once per rank"
        )
    raise Fault(f"computes {name} of a partial sum, before it is added up over the ranks (all_reduce)")


def reduced(call: Call) -> Results:
    """Return the layouts of a reduction. None of the reduced dimensions may be sharded."""
    source = call.first
    count = len(call.results)
    name = call.name.removeprefix("aten.")
    if source.layout is Placement.PARTIAL:
        if name in ("sum", "mean"):
            return Placement.PARTIAL
        raise Fault(f"computes {name} of a partial sum, before it is added up over the ranks (all_reduce)")
    layout = cut_of(source)
    rank = len(source.sizes)
    dims = [dim % rank for dim in dims_of(call, name, rank)]
    if layout.dim in dims:
        if name == "sum":
            return Placement.PARTIAL
        raise Fault(f"computes {name} along a sharded dimension")
    for other in list(call.operands())[1:]:
        if other.layout not in (Placement.REPLICATE, Placement.FILL):
            raise Fault("combines tensors that are sharded in different ways")
    is_kept = len(call.sizes) == rank
    made = Shard(layout.dim - (0 if is_kept else sum(dim < layout.dim for dim in dims)), layout.part)
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
    """Return the layout of elements that index tensors select."""
    source = call.first
    raw = call.get("indices")
    indices = list(raw) if isinstance(raw, list) else []
    chosen = [dim for dim, index in enumerate(indices) if isinstance(index, Operand)]
    if any(indices[dim].layout is not Placement.REPLICATE for dim in chosen):
        raise Fault("selects rows by sharded indices")
    if not isinstance(source.layout, Shard):
        return source.layout
    dim, more = source.layout.dim, len(call.sizes) - len(source.sizes) + len(chosen)
    if dim in chosen:
        raise Fault("selects elements of a sharded dimension")
    if len(call.sizes) < len(source.sizes) - len(chosen) or not chosen:
        raise Fault("selects elements in a way that has no sharding rule")
    is_together = chosen == list(range(chosen[0], chosen[-1] + 1))
    before = sum(other < dim for other in chosen)
    is_moved = not is_together or dim > chosen[0]
    return Shard(dim - before + (more if is_moved else 0), source.layout.part)


def looked_up(call: Call) -> Layout:
    """Return the layout of embeddings. If the vocabulary is sharded, the masked result is a partial sum."""
    weight, index = call.get("weight"), call.get("indices")
    if (
        isinstance(weight.layout, Shard)
        and isinstance(index, Operand)
        and index.layout is Placement.REPLICATE
    ):
        if weight.layout.dim == 1:
            return Shard(len(call.sizes) - 1, weight.layout.part)
        if "masked_fill" in str(index.node.target):
            return Placement.OWN_ROWS
    raise Fault("looks up a range of the vocabulary as if it were the whole vocabulary")


def picked(call: Call) -> Layout:
    """Return the layout of elements that an index tensor selects along a dimension."""
    source = call.first
    others = list(call.operands())[1:]
    layout = cut_of(source)
    if call.get("dim") % len(source.sizes) == layout.dim:
        raise Fault("selects elements of a sharded dimension")
    for other in others:
        is_chosen = call.name == "aten.index_select" and other.layout is Placement.REPLICATE
        if other.layout != layout and not is_chosen:
            raise Fault("selects elements with indices that are not sharded the same way as the tensor")
    return layout


def exchanged(call: Call) -> Layout:
    """Return the layout of the result of a collective. Every rank has the whole result."""
    layout = call.first.layout
    call.compared.add("group_size")
    if call.name.endswith("wait_tensor"):
        return layout
    if call.name.endswith("all_reduce") and layout in (Placement.PARTIAL, Placement.OWN_ROWS):
        return Placement.REPLICATE
    if call.name.endswith("all_gather_into_tensor"):
        if layout is Placement.PARTS:
            return layout
        if isinstance(layout, Shard) and len(layout.part.ranges) == 1 and layout.dim == len(call.sizes) - 1:
            return Placement.PARTS
        raise Fault("gathers something other than a shard of the last dimension")
    if layout in (Placement.REPLICATE, Placement.FILL):
        raise Fault(f"adds up a tensor over {call.ranks} ranks, although each rank has the whole tensor")
    raise Fault("adds up shards, which are not partial sums")


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
