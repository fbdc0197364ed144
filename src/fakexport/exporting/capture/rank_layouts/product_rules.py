"""Layout rules for operators that multiply and sum. Each operator is expressed as an einsum."""

from __future__ import annotations

from string import ascii_letters

from .call import Call, Operand
from .layout import Fault, Layout, Placement, Shard, ShardedDim

_BATCH = ascii_letters[26:]


def multiplied(call: Call) -> Layout:
    """Return the layout of a product. A sum over a sharded dimension is a partial sum."""
    equation, factors, added = _equation(call)
    inputs, output = equation.split("->")
    parts: dict[str, ShardedDim] = {}
    for letters, factor in zip(inputs.split(","), factors, strict=True):
        layout = factor.layout
        if isinstance(layout, Shard):
            parts.setdefault(letters[layout.dim], layout.part)
    if len(parts) > 1:
        raise Fault("multiplies tensors that are sharded along different dimensions")
    is_sum = [factor.layout is Placement.PARTIAL for factor in factors]
    if sum(is_sum) > 1 or (any(is_sum) and parts):
        raise Fault("multiplies partial sums before they are added up over the ranks (all_reduce)")
    for letter, part in parts.items():
        for letters, factor in zip(inputs.split(","), factors, strict=True):
            for dim in (dim for dim, other in enumerate(letters) if other == letter):
                if factor.cut_at(dim) != part:
                    raise Fault("multiplies a shard with a tensor that is not sharded the same way")
    result: Layout = Placement.PARTIAL if any(is_sum) else Placement.REPLICATE
    for letter, part in parts.items():
        result = Shard(output.index(letter), part) if letter in output else Placement.PARTIAL
    if added is not None:
        _check_added(added, result, len(output))
    return result


def _check_added(added: Operand, result: Layout, rank: int) -> None:
    if isinstance(result, Shard):
        dim = result.dim - rank + len(added.sizes)
        is_alike = dim < 0 or added.is_same_along(dim) or added.cut_at(dim) == result.part
    else:
        is_alike = added.layout is result
    if not is_alike and added.layout is not Placement.FILL:
        raise Fault("adds a bias that is not sharded like the product, or adds it once per rank")


def _equation(call: Call) -> tuple[str, list[Operand], Operand | None]:
    """Return a product as an einsum: the equation, the factors, and the tensor that is added."""
    if call.name == "aten.einsum":
        return _spelled(str(call.get("equation")), call.get("tensors"))
    if call.name == "aten.linear":
        inputs, weight = call.get("input"), call.get("weight")
        batch = _BATCH[: len(inputs.sizes) - 1]
        bias = call.get("bias")
        return f"{batch}i,oi->{batch}o", [inputs, weight], bias if isinstance(bias, Operand) else None
    if call.name in ("aten.addmm", "aten.baddbmm"):
        batch = _BATCH[: len(call.sizes) - 2]
        added = call.get("self", "input")
        one, two = call.get("mat1", "batch1"), call.get("mat2", "batch2")
        return f"{batch}ij,{batch}jk->{batch}ik", [one, two], added
    one, two, *offsets = call.operands()
    if "grouped_mm" in call.name:
        if len(one.sizes) != 2 or len(two.sizes) != 3 or not offsets:
            raise Fault(f"calls {call.name} with arguments that have no sharding rule")
        return "ti,eio->to", [one, two], None
    return _matmul(one, two)


def _matmul(one: Operand, two: Operand) -> tuple[str, list[Operand], None]:
    """Return `torch.matmul` as an einsum. Batch dimensions are broadcast, starting from the last one."""
    a, b = len(one.sizes), len(two.sizes)
    batch = _BATCH[: max(a, b, 2) - 2]
    left = "j" if a == 1 else batch[len(batch) - a + 2 :] + "ij"
    right = "j" if b == 1 else batch[len(batch) - b + 2 :] + "jk"
    output = batch + "i" * (a > 1) + "k" * (b > 1)
    return f"{left},{right}->{output}", [one, two], None


def _spelled(equation: str, operands: list[Operand]) -> tuple[str, list[Operand], None]:
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow:
        letters = inputs.replace(",", "").replace(".", "")
        output = "..." * ("..." in inputs) + "".join(sorted({c for c in letters if letters.count(c) == 1}))
    terms = inputs.split(",")
    rest = [len(o.sizes) - len(t.replace("...", "")) for t, o in zip(terms, operands, strict=True)]
    free = [c for c in ascii_letters if c not in equation][: max(rest, default=0)]
    spelled = [
        text.replace("...", "".join(free[len(free) - count :]) if count else "")
        for text, count in zip(terms, rest, strict=True)
    ]
    return f"{','.join(spelled)}->{output.replace('...', ''.join(free))}", operands, None


def attended(call: Call) -> Layout:
    """Return the layout of `scaled_dot_product_attention`. Only the heads can be sharded."""
    query, key, value = call.get("query"), call.get("key"), call.get("value")
    layouts = [operand.layout for operand in (query, key, value)]
    mask = call.get("attn_mask", "attn_bias")
    if set(layouts) <= {Placement.REPLICATE, Placement.FILL}:
        return Placement.REPLICATE
    heads = len(query.sizes) - 3
    parts = [operand.cut_at(heads) for operand in (query, key, value)]
    if None in parts or parts[1] != parts[2]:
        raise Fault("computes attention with a rank's heads and a tensor that is not sharded by heads")
    own, held = parts[0], parts[1]
    assert own is not None
    assert held is not None
    if own.size % held.size or held.scaled(own.size // held.size) != own:
        raise Fault("computes attention with query heads whose key-value heads are on other ranks")
    if isinstance(mask, Operand) and len(mask.sizes) >= 3 and (at := len(mask.sizes) - 3) >= 0:
        is_alike = mask.is_same_along(at) or mask.cut_at(at) == own
        if not is_alike and mask.layout is not Placement.FILL:
            raise Fault("masks a rank's heads with a mask of other heads")
    return Shard(heads, own)


def convolved(call: Call) -> Layout:
    """Return the layout of a convolution.

    The output channels may be sharded. The input channels may be sharded only if the convolution is
    depthwise.
    """
    inputs, weight, bias, groups = call.get("input"), call.get("weight"), call.get("bias"), call.get("groups")
    part = weight.cut_at(0)
    channels = len(inputs.sizes) - len(weight.sizes) + 1
    is_depthwise = (groups or 1) == weight.sizes[0] and weight.sizes[1] == 1
    held = inputs.cut_at(channels)
    if part is None or inputs.layout not in (Placement.REPLICATE, Shard(channels, part)):
        raise Fault("computes a convolution over sharded channels")
    if (held is None) if is_depthwise else ((groups or 1) != 1 or held is not None):
        raise Fault("computes a convolution whose input channels do not match the shard of the weight")
    if isinstance(bias, Operand) and bias.cut_at(0) != part:
        raise Fault("adds a bias that is not sharded like the convolution")
    call.compared.add("groups")
    return Shard(channels, part)


PRODUCT_RULES = {
    **dict.fromkeys(("linear", "matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "einsum"), multiplied),
    **dict.fromkeys(("_grouped_mm", "grouped_mm", "grouped_mm_fallback"), multiplied),
    "scaled_dot_product_attention": attended,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), convolved),
}
