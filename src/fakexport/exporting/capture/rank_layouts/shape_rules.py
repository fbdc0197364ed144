"""Layout rules for operators that rearrange or copy elements without computing.

Sizes and bounds in their arguments may be specific to a rank. The rules compare these arguments with those of
the unsharded model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from torch.fx import Node

from fakexport.exporting.program import operator_name

from .call import Call, Operand, Results, at_example, cut_of
from .layout import Fault, Layout, Placement, Shard, ShardedDim

Rule = Callable[[Call], Results]
SIZE_ARGUMENTS = frozenset({"size", "shape", "sizes", "repeats", "split_size", "split_sizes"})
"""Arguments that only determine the shapes of results, which are compared with the unsharded model."""


def kept(call: Call) -> Layout:
    """Return the layout of the first operand, for a copy or a conversion."""
    return call.first.layout


def viewed(call: Call) -> Layout:
    """Return the layout after a reshape. On a rank, the sharded dimension is smaller than in the model."""
    source, new, whole = call.first, call.sizes, call.whole_sizes
    if not isinstance(source.layout, Shard):
        return source.layout
    old, dim, part = source.sizes, source.layout.dim, source.layout.part
    inner = prod(old[dim + 1 :])
    changed = [index for index, size in enumerate(new) if len(new) == len(whole) and size != whole[index]]
    index = changed[0] if changed else 0
    below, packed = prod(new[index + 1 :]), len(part.ranges)
    if len(changed) != 1 or not inner * old[dim]:
        raise _mixed(new, whole)
    is_unpacked = index > 0 and 1 < packed == new[index - 1]
    if is_unpacked and inner == 1 and below * new[index] * packed == old[dim]:
        part = part.packed(0, 1)
    elif below * new[index] != inner * old[dim]:
        raise _mixed(new, whole)
    made = part.scaled(inner, below)
    if made is None:
        raise _mixed(new, whole)
    return Shard(index, made)


def _mixed(new: Sequence[int], whole: Sequence[int]) -> Fault:
    return Fault(
        f"reshapes sharded features to {tuple(new)}, where the unsharded model reshapes them to "
        f"{tuple(whole)}: pass -1 for the number of heads"
    )


def permuted(call: Call) -> Layout:
    """Return the layout after permuting dimensions."""
    source = call.first
    if not isinstance(source.layout, Shard):
        return source.layout
    order = list(range(len(source.sizes)))
    if call.name == "aten.permute":
        order = [dim % len(order) for dim in call.get("dims")]
    elif call.name == "aten.movedim":
        begin, end = call.get("source"), call.get("destination")
        if isinstance(begin, list):
            raise Fault("moves several dimensions at once, which has no sharding rule")
        order.insert(end % len(order), order.pop(begin % len(order)))
    elif len(order) > 1:
        swapped = (call.get("dim0", "axis0"), call.get("dim1", "axis1"))
        one, two = (-1, -2) if swapped[0] is None else swapped
        order[one], order[two] = order[two], order[one]
    return Shard(order.index(source.layout.dim), source.layout.part)


def squeezed(call: Call) -> Layout:
    """Return the layout after removing dimensions of size 1."""
    source, given = call.first, call.get("dim")
    if not isinstance(source.layout, Shard):
        return source.layout
    rank = len(source.sizes)
    asked = given if isinstance(given, list) else [given]
    dims = range(rank) if given is None else [dim % rank for dim in asked]
    gone = [dim for dim in dims if source.sizes[dim] == 1]
    if source.layout.dim in gone:
        raise Fault("removes a sharded dimension with one element per rank")
    return Shard(source.layout.dim - sum(dim < source.layout.dim for dim in gone), source.layout.part)


def unsqueezed(call: Call) -> Layout:
    """Return the layout with an additional dimension of size 1."""
    layout = call.first.layout
    if not isinstance(layout, Shard):
        return layout
    dim = call.get("dim") % len(call.sizes)
    return Shard(layout.dim + (dim <= layout.dim), layout.part)


def expanded(call: Call) -> Layout:
    """Return the layout of a tensor that is expanded along dimensions of size 1 or along new dimensions."""
    source, sizes = call.first, call.sizes
    if not isinstance(source.layout, Shard):
        return source.layout
    dim = source.layout.dim + len(sizes) - len(source.sizes)
    if sizes[dim] != source.sizes[source.layout.dim]:
        raise Fault("repeats a sharded dimension with one element per rank")
    return Shard(dim, source.layout.part)


def expanded_whole(call: Call, rank: int) -> Layout:
    """Return the layout of an expanded unsharded tensor. Equal slices match any shard of the dimension."""
    sizes, whole, given = call.sizes, call.whole_sizes, call.first.sizes
    before = len(sizes) - len(given)
    for dim, (mine, theirs) in enumerate(zip(sizes, whole, strict=True)):
        if mine != theirs and mine and (dim < before or given[dim - before] == 1):
            return Shard(dim, ShardedDim(theirs, ((rank * mine, (rank + 1) * mine),)))
    return Placement.REPLICATE


def divided(call: Call) -> Results:
    """Return the layouts of chunks. A chunk of the sharded dimension must consist of whole packed weights."""
    source, count = call.first, len(call.results)
    layout = source.layout
    if not isinstance(layout, Shard):
        return [layout] * count
    dim = (call.get("dim") or 0) % len(source.sizes)
    if dim != layout.dim:
        gone = call.name == "aten.unbind" and dim < layout.dim
        return [Shard(layout.dim - gone, layout.part)] * count
    if call.name == "aten.unbind":
        raise Fault("selects single elements of a sharded dimension")
    found: list[Layout] = []
    start = 0
    for sizes in call.results:
        found.append(Shard(dim, _piece(layout.part, start, start + sizes[dim])))
        start += sizes[dim]
    return found


def sliced(call: Call) -> Layout:
    """Return the layout of a slice.

    The slice may select packed weights of a shard, or this rank's shard of an unsharded tensor.
    """
    source, layout = call.first, call.first.layout
    dim = (call.get("dim") or 0) % len(source.sizes)
    start, step = at_example(call.get("start")) or 0, call.get("step") or 1
    start = start if start >= 0 else start + source.sizes[dim]
    end = start + call.sizes[dim]
    if layout is Placement.FILL:
        call.compared.update(_BOUNDS)
    if (
        layout is Placement.REPLICATE
        and call.whole_sizes == source.sizes
        and call.sizes != source.sizes
        and step == 1
    ):
        call.compared.update(_BOUNDS)
        return Shard(dim, ShardedDim(source.sizes[dim], ((start, end),)))
    if not isinstance(layout, Shard) or dim != layout.dim:
        return layout
    whole_start = call.whole_number("start") or 0
    whole_start = whole_start if whole_start >= 0 else whole_start + layout.part.size
    if step == 1:
        part, whole_end = _piece(layout.part, start, end), whole_start + call.whole_sizes[dim]
        each, edges = layout.part.size // len(layout.part.ranges), layout.part.edges()
        is_alike = (whole_start, whole_end) == (edges.index(start) * each, edges.index(end) * each)
    else:
        every, is_alike = layout.part.scaled(1, step), whole_start == start
        if every is None or start >= step or every.local != call.sizes[dim]:
            raise Fault(
                f"takes sharded features in steps of {step}, but a group of {step} features is split between "
                "two ranks"
            )
        part = every
    if is_alike:
        call.compared.update(_BOUNDS)
    return Shard(dim, part)


_BOUNDS = ("start", "end", "length")


def _piece(part: ShardedDim, start: int, end: int) -> ShardedDim:
    edges = part.edges()
    if start == 0 and end == edges[-1]:
        return part
    if start not in edges or end not in edges or start >= end:
        raise Fault(
            f"takes features {start} to {end} of the {edges[-1]} on a rank, which differ from the features "
            "that the unsharded model takes: if the weight is packed, the plan must shard each of its "
            "parts (packed_colwise)"
        )
    return part.packed(edges.index(start), edges.index(end))


def selected(call: Call) -> Layout:
    """Return the layout after selecting one element along a dimension."""
    layout = call.first.layout
    if not isinstance(layout, Shard):
        return layout
    dim = call.get("dim") % len(call.first.sizes)
    if dim == layout.dim:
        raise Fault("selects one element of a sharded dimension")
    return Shard(layout.dim - (dim < layout.dim), layout.part)


def joined(call: Call) -> Layout:
    """Return the layout of concatenated tensors. Shards that are concatenated become packed weights."""
    operands = [operand for operand in call.operands() if operand.sizes != (0,)]
    cuts = [operand for operand in operands if operand.part]
    if not cuts:
        return alike(operands)
    cut = cut_of(cuts[0])
    dim = (call.get("dim") or 0) % len(call.sizes)
    if dim != cut.dim:
        for operand in operands:
            _expect_alike(operand, cut.dim, cut.part)
        return cut
    each = {operand.part.size // len(operand.part.ranges) for operand in cuts if operand.part}
    if len(cuts) < len(operands) or len({operand.layout.dim for operand in cuts}) > 1 or len(each) > 1:  # type: ignore[union-attr]
        raise Fault("concatenates sharded features with features that are not sharded the same way")
    size, ranges = 0, list[tuple[int, int]]()
    for part in (operand.part for operand in cuts if operand.part):
        ranges += [(start + size, end + size) for start, end in part.ranges]
        size += part.size
    return Shard(dim, ShardedDim(size, tuple(ranges)))


def stacked(call: Call) -> Layout:
    """Return the layout of tensors stacked along a new dimension."""
    operands = list(call.operands())
    cut = next((operand.layout for operand in operands if isinstance(operand.layout, Shard)), None)
    if cut is None:
        return alike(operands)
    for operand in operands:
        _expect_alike(operand, cut.dim, cut.part)
    dim = (call.get("dim") or 0) % len(call.sizes)
    return Shard(cut.dim + (dim <= cut.dim), cut.part)


def alike(operands: Sequence[Operand]) -> Layout:
    """Return the common layout of unsharded operands.

    Raises:
        Fault: only some of them are partial sums.
    """
    found = {operand.layout for operand in operands}
    if Placement.PARTIAL in found and found - {Placement.PARTIAL, Placement.FILL}:
        raise Fault("combines a partial sum of one rank with a tensor that every rank has in full")
    return found.pop() if len(found) == 1 else next(iter(found - {Placement.FILL}), Placement.REPLICATE)


def _expect_alike(operand: Operand, dim: int, part: ShardedDim) -> None:
    is_part = operand.cut_at(dim) == part
    if not is_part and operand.layout is not Placement.FILL and dim not in operand.repeated:
        raise Fault("combines a shard with a tensor that is not sharded the same way")


def repeated(call: Call) -> Layout:
    """Return the layout of `repeat_interleave`, which repeats each element."""
    layout, times = call.first.layout, call.get("repeats")
    if not isinstance(layout, Shard):
        return layout
    if call.get("dim") is None or not isinstance(times, int):
        raise Fault("repeats elements of a sharded dimension")
    if call.get("dim") % len(call.sizes) != layout.dim:
        return layout
    part = layout.part.scaled(times)
    assert part is not None
    return Shard(layout.dim, part)


def tiled(call: Call) -> Layout:
    """Return the layout of `repeat` or `tile`, which repeat a whole tensor."""
    layout, times = call.first.layout, call.get("repeats", "dims")
    if not isinstance(layout, Shard):
        return layout
    more = len(call.sizes) - len(call.first.sizes)
    if times[len(times) - len(call.first.sizes) + layout.dim] != 1:
        raise Fault("repeats a shard, which would change the order of the model's features")
    return Shard(layout.dim + more, layout.part)


def paired(call: Call) -> Layout:
    """Return the layout of complex numbers that are made from pairs of real numbers."""
    layout = call.first.layout
    if isinstance(layout, Shard) and layout.dim == len(call.first.sizes) - 1:
        raise Fault("creates complex numbers from a sharded dimension")
    return layout


def padded(call: Call) -> Layout:
    """Return the layout of a padded tensor."""
    layout = call.first.layout
    if not isinstance(layout, Shard):
        return layout
    pads = call.get("pad")
    at = 2 * (len(call.sizes) - 1 - layout.dim)
    if at == 0 and _is_gathered(call.node):
        call.compared.add("pad")
        return Placement.PARTS
    if any(pads[at : at + 2]):
        raise Fault("pads a sharded dimension")
    return layout


def _is_gathered(node: Node) -> bool:
    """Return whether a padded tensor is passed to an all-gather. Padding gives uneven shards equal sizes."""
    (user,) = node.users if len(node.users) == 1 else (node,)
    if operator_name(user) == "aten.contiguous.default":
        return _is_gathered(user)
    return "all_gather" in operator_name(user)


SHAPE_RULES: dict[str, Rule] = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "unflatten", "flatten", "view_as"), viewed),
    **dict.fromkeys(
        (
            *("clone", "contiguous", "detach", "detach_", "alias", "lift_fresh_copy", "to", "_to_copy"),
            *("type_as", "dropout", "float", "half", "bfloat16", "view_as_real", "resolve_conj"),
        ),
        kept,
    ),
    **dict.fromkeys(
        ("transpose", "permute", "t", "swapaxes", "swapdims", "movedim", "numpy_T", "mT", "adjoint"), permuted
    ),
    **dict.fromkeys(("squeeze", "squeeze_"), squeezed),
    **dict.fromkeys(("unsqueeze", "unsqueeze_"), unsqueezed),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), expanded),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split", "unbind"), divided),
    **dict.fromkeys(("slice", "narrow"), sliced),
    **dict.fromkeys(("cat", "concat", "concatenate"), joined),
    "select": selected,
    "view_as_complex": paired,
    "stack": stacked,
    "repeat_interleave": repeated,
    **dict.fromkeys(("repeat", "tile"), tiled),
    **dict.fromkeys(("pad", "constant_pad_nd"), padded),
}
