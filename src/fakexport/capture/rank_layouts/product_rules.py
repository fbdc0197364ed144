"""Operators that multiply and add up, written as one einsum each."""

from __future__ import annotations

from string import ascii_letters

from .call import Call, Operand
from .layout import Common, Cut, Fault, Layout, Part

_BATCH = ascii_letters[26:]


def multiplied(call: Call) -> Layout:
    """Return the layout of a product: a sum over features of which the rank has a part is a summand."""
    equation, factors, added = _equation(call)
    inputs, output = equation.split("->")
    parts: dict[str, Part] = {}
    for letters, factor in zip(inputs.split(","), factors, strict=True):
        layout = factor.layout
        if isinstance(layout, Cut):
            parts.setdefault(letters[layout.dim], layout.part)
    if len(parts) > 1:
        raise Fault("multiplies parts of different dimensions")
    is_sum = [factor.layout is Common.SUM for factor in factors]
    if sum(is_sum) > 1 or (any(is_sum) and parts):
        raise Fault("multiplies summands of ranks before they are added up (all_reduce)")
    for letter, part in parts.items():
        for letters, factor in zip(inputs.split(","), factors, strict=True):
            for dim in (dim for dim, other in enumerate(letters) if other == letter):
                if factor.cut_at(dim) != part:
                    raise Fault("multiplies a rank's part with a tensor that is not sharded alike")
    result: Layout = Common.SUM if any(is_sum) else Common.WHOLE
    for letter, part in parts.items():
        result = Cut(output.index(letter), part) if letter in output else Common.SUM
    if added is not None:
        _check_added(added, result, len(output))
    return result


def _check_added(added: Operand, result: Layout, rank: int) -> None:
    if isinstance(result, Cut):
        dim = result.dim - rank + len(added.sizes)
        is_alike = dim < 0 or added.is_same_along(dim) or added.cut_at(dim) == result.part
    else:
        is_alike = added.layout is result
    if not is_alike and added.layout is not Common.FILL:
        raise Fault("adds a bias that is not sharded as the product is, or once on each rank")


def _equation(call: Call) -> tuple[str, list[Operand], Operand | None]:
    """Return a product as einsum: the equation, what is multiplied, and what is added."""
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
            raise Fault(f"calls {call.name} in a form that no rule follows")
        return "ti,eio->to", [one, two], None
    return _matmul(one, two)


def _matmul(one: Operand, two: Operand) -> tuple[str, list[Operand], None]:
    """Return `torch.matmul`, whose batch dimensions broadcast from the last one."""
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
    """Return the layout of `scaled_dot_product_attention`: only heads may be sharded."""
    query, key, value = call.get("query"), call.get("key"), call.get("value")
    layouts = [operand.layout for operand in (query, key, value)]
    mask = call.get("attn_mask", "attn_bias")
    if set(layouts) <= {Common.WHOLE, Common.FILL}:
        return Common.WHOLE
    heads = len(query.sizes) - 3
    parts = [operand.cut_at(heads) for operand in (query, key, value)]
    if None in parts or parts[1] != parts[2]:
        raise Fault("attends with a rank's heads and a tensor that is not sharded by heads")
    own, held = parts[0], parts[1]
    assert own is not None
    assert held is not None
    if own.size % held.size or held.scaled(own.size // held.size) != own:
        raise Fault("attends with heads that belong to key-value heads of other ranks")
    if isinstance(mask, Operand) and len(mask.sizes) >= 3 and (at := len(mask.sizes) - 3) >= 0:
        is_alike = mask.is_same_along(at) or mask.cut_at(at) == own
        if not is_alike and mask.layout is not Common.FILL:
            raise Fault("masks a rank's heads with a mask of other heads")
    return Cut(heads, own)


def convolved(call: Call) -> Layout:
    """Return the layout of a convolution: channels may be sharded, each by itself or as outputs."""
    inputs, weight, bias, groups = call.get("input"), call.get("weight"), call.get("bias"), call.get("groups")
    part = weight.cut_at(0)
    channels = len(inputs.sizes) - len(weight.sizes) + 1
    is_depthwise = (groups or 1) == weight.sizes[0] and weight.sizes[1] == 1
    held = inputs.cut_at(channels)
    if part is None or inputs.layout not in (Common.WHOLE, Cut(channels, part)):
        raise Fault("convolves channels of which the rank has a part")
    if (held is None) if is_depthwise else ((groups or 1) != 1 or held is not None):
        raise Fault("convolves channels that are not sharded alike")
    if isinstance(bias, Operand) and bias.cut_at(0) != part:
        raise Fault("adds a bias that is not sharded as the convolution is")
    call.compared.add("groups")
    return Cut(channels, part)


PRODUCT_RULES = {
    **dict.fromkeys(("linear", "matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "einsum"), multiplied),
    **dict.fromkeys(("_grouped_mm", "grouped_mm", "grouped_mm_fallback"), multiplied),
    "scaled_dot_product_attention": attended,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), convolved),
}
