"""Operators that move elements and compute nothing: where a rank's part is afterwards.

The sizes and bounds that they are called with may be those of a rank: the rules compare them with those of
the unsharded model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from torch.fx import Node

from fakexport.program import operator_name

from .call import Call, Operand, Results, at_example, cut_of
from .layout import Common, Cut, Fault, Layout, Part

Rule = Callable[[Call], Results]
SIZE_ARGUMENTS = frozenset({"size", "shape", "sizes", "repeats", "split_size", "split_sizes"})
"""What decides only the shapes of results, which are compared with those of the unsharded model."""


def kept(call: Call) -> Layout:
    """The result is the first operand, in another memory or dtype."""
    return call.first.layout


def viewed(call: Call) -> Layout:
    """Return the layout after a reshape: sharded is the dimension whose size is not that of the model."""
    source, new, whole = call.first, call.sizes, call.whole_sizes
    if not isinstance(source.layout, Cut):
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
    return Cut(index, made)


def _mixed(new: Sequence[int], whole: Sequence[int]) -> Fault:
    return Fault(
        f"reshapes sharded features to {tuple(new)}, and the unsharded model to {tuple(whole)}: the number "
        "of heads has to be the size that is inferred (-1)"
    )


def permuted(call: Call) -> Layout:
    """Return the layout after dimensions change places."""
    source = call.first
    if not isinstance(source.layout, Cut):
        return source.layout
    order = list(range(len(source.sizes)))
    if call.name == "aten.permute":
        order = [dim % len(order) for dim in call.get("dims")]
    elif call.name == "aten.movedim":
        begin, end = call.get("source"), call.get("destination")
        if isinstance(begin, list):
            raise Fault("moves several dimensions at once, which no rule follows")
        order.insert(end % len(order), order.pop(begin % len(order)))
    elif len(order) > 1:
        swapped = (call.get("dim0", "axis0"), call.get("dim1", "axis1"))
        one, two = (-1, -2) if swapped[0] is None else swapped
        order[one], order[two] = order[two], order[one]
    return Cut(order.index(source.layout.dim), source.layout.part)


def squeezed(call: Call) -> Layout:
    """Return the layout without some dimensions of size 1."""
    source, given = call.first, call.get("dim")
    if not isinstance(source.layout, Cut):
        return source.layout
    rank = len(source.sizes)
    asked = given if isinstance(given, list) else [given]
    dims = range(rank) if given is None else [dim % rank for dim in asked]
    gone = [dim for dim in dims if source.sizes[dim] == 1]
    if source.layout.dim in gone:
        raise Fault("removes a dimension of which each rank has one element")
    return Cut(source.layout.dim - sum(dim < source.layout.dim for dim in gone), source.layout.part)


def unsqueezed(call: Call) -> Layout:
    """Return the layout with a dimension of size 1 more."""
    layout = call.first.layout
    if not isinstance(layout, Cut):
        return layout
    dim = call.get("dim") % len(call.sizes)
    return Cut(layout.dim + (dim <= layout.dim), layout.part)


def expanded(call: Call) -> Layout:
    """Return the layout of a tensor that is repeated along dimensions of size 1, or before all others."""
    source, sizes = call.first, call.sizes
    if not isinstance(source.layout, Cut):
        return source.layout
    dim = source.layout.dim + len(sizes) - len(source.sizes)
    if sizes[dim] != source.sizes[source.layout.dim]:
        raise Fault("repeats a dimension of which each rank has one element")
    return Cut(dim, source.layout.part)


def expanded_whole(call: Call, rank: int) -> Layout:
    """Return the layout of a whole tensor that is repeated: any part of what is equal everywhere is right."""
    sizes, whole, given = call.sizes, call.whole_sizes, call.first.sizes
    before = len(sizes) - len(given)
    for dim, (mine, theirs) in enumerate(zip(sizes, whole, strict=True)):
        if mine != theirs and mine and (dim < before or given[dim - before] == 1):
            return Cut(dim, Part(theirs, ((rank * mine, (rank + 1) * mine),)))
    return Common.WHOLE


def divided(call: Call) -> Results:
    """Return the layouts of pieces; of sharded features a piece has to be whole packed weights."""
    source, count = call.first, len(call.results)
    layout = source.layout
    if not isinstance(layout, Cut):
        return [layout] * count
    dim = (call.get("dim") or 0) % len(source.sizes)
    if dim != layout.dim:
        gone = call.name == "aten.unbind" and dim < layout.dim
        return [Cut(layout.dim - gone, layout.part)] * count
    if call.name == "aten.unbind":
        raise Fault("takes single elements of a dimension of which the rank has a part")
    found: list[Layout] = []
    start = 0
    for sizes in call.results:
        found.append(Cut(dim, _piece(layout.part, start, start + sizes[dim])))
        start += sizes[dim]
    return found


def sliced(call: Call) -> Layout:
    """Return the layout of a slice: of packed weights, or the part of this rank of what every rank has."""
    source, layout = call.first, call.first.layout
    dim = (call.get("dim") or 0) % len(source.sizes)
    start, step = at_example(call.get("start")) or 0, call.get("step") or 1
    start = start if start >= 0 else start + source.sizes[dim]
    end = start + call.sizes[dim]
    if layout is Common.FILL:
        call.compared.update(_BOUNDS)
    if (
        layout is Common.WHOLE
        and call.whole_sizes == source.sizes
        and call.sizes != source.sizes
        and step == 1
    ):
        call.compared.update(_BOUNDS)
        return Cut(dim, Part(source.sizes[dim], ((start, end),)))
    if not isinstance(layout, Cut) or dim != layout.dim:
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
                f"takes every {step}th of sharded features, which cuts a group of {step} between two ranks"
            )
        part = every
    if is_alike:
        call.compared.update(_BOUNDS)
    return Cut(dim, part)


_BOUNDS = ("start", "end", "length")


def _piece(part: Part, start: int, end: int) -> Part:
    edges = part.edges()
    if start == 0 and end == edges[-1]:
        return part
    if start not in edges or end not in edges or start >= end:
        raise Fault(
            f"takes {start} to {end} of the {edges[-1]} sharded features of a rank, which are not those of "
            "the model: if the weight packs several, the plan has to shard each (packed_colwise)"
        )
    return part.packed(edges.index(start), edges.index(end))


def selected(call: Call) -> Layout:
    """Return the layout without a dimension, of which one element is taken."""
    layout = call.first.layout
    if not isinstance(layout, Cut):
        return layout
    dim = call.get("dim") % len(call.first.sizes)
    if dim == layout.dim:
        raise Fault("takes one element of a dimension of which the rank has a part")
    return Cut(layout.dim - (dim < layout.dim), layout.part)


def joined(call: Call) -> Layout:
    """Return the layout of tensors one after the other: parts become packed weights."""
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
        raise Fault("joins sharded features with others, which are not sharded alike")
    size, ranges = 0, list[tuple[int, int]]()
    for part in (operand.part for operand in cuts if operand.part):
        ranges += [(start + size, end + size) for start, end in part.ranges]
        size += part.size
    return Cut(dim, Part(size, tuple(ranges)))


def stacked(call: Call) -> Layout:
    """Return the layout of tensors along a dimension of their own."""
    operands = list(call.operands())
    cut = next((operand.layout for operand in operands if isinstance(operand.layout, Cut)), None)
    if cut is None:
        return alike(operands)
    for operand in operands:
        _expect_alike(operand, cut.dim, cut.part)
    dim = (call.get("dim") or 0) % len(call.sizes)
    return Cut(cut.dim + (dim <= cut.dim), cut.part)


def alike(operands: Sequence[Operand]) -> Layout:
    """Return the common layout of operands without parts.

    Raises:
        Fault: Some are summands and others are not.
    """
    found = {operand.layout for operand in operands}
    if Common.SUM in found and found - {Common.SUM, Common.FILL}:
        raise Fault("combines one rank's summand with a tensor that every rank has in full")
    return found.pop() if len(found) == 1 else next(iter(found - {Common.FILL}), Common.WHOLE)


def _expect_alike(operand: Operand, dim: int, part: Part) -> None:
    is_part = operand.cut_at(dim) == part
    if not is_part and operand.layout is not Common.FILL and dim not in operand.repeated:
        raise Fault("combines a rank's part with a tensor that is not sharded alike")


def repeated(call: Call) -> Layout:
    """Return the layout after each element is repeated in place."""
    layout, times = call.first.layout, call.get("repeats")
    if not isinstance(layout, Cut):
        return layout
    if call.get("dim") is None or not isinstance(times, int):
        raise Fault("repeats elements of which the rank has a part")
    if call.get("dim") % len(call.sizes) != layout.dim:
        return layout
    part = layout.part.scaled(times)
    assert part is not None
    return Cut(layout.dim, part)


def tiled(call: Call) -> Layout:
    """Return the layout after a tensor is repeated as a whole."""
    layout, times = call.first.layout, call.get("repeats", "dims")
    if not isinstance(layout, Cut):
        return layout
    more = len(call.sizes) - len(call.first.sizes)
    if times[len(times) - len(call.first.sizes) + layout.dim] != 1:
        raise Fault("repeats a rank's part: the features of the model would be in another order")
    return Cut(layout.dim + more, layout.part)


def paired(call: Call) -> Layout:
    """Return the layout of pairs of numbers as complex ones."""
    layout = call.first.layout
    if isinstance(layout, Cut) and layout.dim == len(call.first.sizes) - 1:
        raise Fault("makes complex numbers of a dimension of which the rank has a part")
    return layout


def padded(call: Call) -> Layout:
    """Return the layout of a tensor with more elements around it."""
    layout = call.first.layout
    if not isinstance(layout, Cut):
        return layout
    pads = call.get("pad")
    at = 2 * (len(call.sizes) - 1 - layout.dim)
    if at == 0 and _is_gathered(call.node):
        call.compared.add("pad")
        return Common.PARTS
    if any(pads[at : at + 2]):
        raise Fault("pads a dimension of which the rank has a part")
    return layout


def _is_gathered(node: Node) -> bool:
    """Return whether a style pads a part for the transfer."""
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
