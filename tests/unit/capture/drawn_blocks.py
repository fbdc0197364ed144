"""Models of equal blocks, except for one thing that the code of a block may observe."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["CALLS", "CHANGES", "STEPS", "Plan", "built"]

WIDTH = 8
COUNTED = [0]


class Switch(nn.Module):
    """Something inside a block with attributes of its own."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self.by = 1.0
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x) * self.by


class Block(nn.Module):
    """A block whose steps are drawn."""

    factor = 1

    def __init__(self, at: int, steps: tuple[str, ...]) -> None:
        super().__init__()
        self.layer_idx = at
        self.steps = steps
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.inner = Switch(at)
        self.settings = {"scale": [1.0, 2.0], "name": "block"}
        self.flag = False
        self.note: Any = None
        self.register_buffer("table", torch.arange(float(WIDTH)))
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.shift = nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, x: Any, extra: Any = None, by: Any = 1, into: Any = None) -> Any:
        is_pair = isinstance(x, tuple)
        if is_pair:
            x, extra = x
        for step in self.steps:
            x = STEPS[step](self, x)
        if isinstance(extra, torch.Tensor):
            x = x + 0.5 * extra
        elif isinstance(extra, dict):
            x = x + sum(value.mean() for value in extra.values())
        elif isinstance(extra, (list, tuple)):
            for one in extra:
                x = x + one.to(x.dtype)
        if into is not None:
            into.append(x.sum(-1))
        x = x * by
        return (x, extra) if is_pair else x


def _perceptron(block: Block, x: torch.Tensor) -> torch.Tensor:
    return x + block.down(torch.relu(block.up(x)))


def _attention(block: Block, x: torch.Tensor) -> torch.Tensor:
    first, second = x.shape[:2]
    heads = x.view(first, second, 2, -1).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(heads, heads, heads)
    return x + mixed.transpose(1, 2).reshape(first, second, -1)


def _write(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.seen.add_(0.5)
    return x + block.seen


def _attribute_write(block: Block, x: torch.Tensor) -> torch.Tensor:
    block.note = x.shape[-1]
    return x * block.note


def _count(block: Block, x: torch.Tensor) -> torch.Tensor:
    COUNTED[0] += 1
    return x * COUNTED[0]


def _experts(block: Block, x: torch.Tensor) -> torch.Tensor:
    scores, chosen = torch.topk(block.up(x).softmax(-1), 2, -1)
    return x + (scores * chosen).sum(-1, keepdim=True)


def _positions(block: Block, x: torch.Tensor) -> torch.Tensor:
    at = torch.arange(x.shape[1], device=x.device)
    return x + torch.sin(at[:, None] * block.table[None]).to(x.dtype)


def _mask(block: Block, x: torch.Tensor) -> torch.Tensor:
    count = x.shape[1]
    mask = torch.full((count, count), -1.0, device=x.device).triu(1)
    return torch.matmul(mask.to(x.dtype).softmax(-1), x)


def _in_place(block: Block, x: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    made[:, :1] += 1
    made.mul_(0.5)
    return made


def _cast(block: Block, x: torch.Tensor) -> torch.Tensor:
    dtype = x.dtype
    x = x.to(torch.float32)
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)


def _sizes(block: Block, x: torch.Tensor) -> torch.Tensor:
    return x / math.sqrt(x.shape[-1]) + x.shape[1] * 0.1 + x.numel() // x.shape[1]


def _views(block: Block, x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    left.view(-1)
    return torch.cat([right, -left], -1).unflatten(-1, (2, -1)).flatten(-2)


def _no_gradient(block: Block, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return block.down(block.up(x)) + x


def _low_precision(block: Block, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x + block.down(block.up(x)).to(x.dtype)


def _complex(block: Block, x: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * pairs.abs()).flatten(-2).to(x.dtype)


STEPS: dict[str, Callable[[Block, torch.Tensor], torch.Tensor]] = {
    "perceptron": _perceptron,
    "attention": _attention,
    "norm": lambda block, x: block.norm(x),
    "inner": lambda block, x: block.inner(x),
    "shift": lambda block, x: x + block.shift,
    "alias of a parameter": lambda block, x: x * block.shift.view(1, -1).expand(2, -1)[:1],
    "position": lambda block, x: x + block.layer_idx,
    "position decides": lambda block, x: x * (3 if block.layer_idx == 4 else 2),
    "position inside": lambda block, x: x + block.inner.at,
    "flag": lambda block, x: -x if block.flag else x,
    "setting": lambda block, x: x * block.settings["scale"][1],
    "class attribute": lambda block, x: x * block.factor,
    "training": lambda block, x: x * 2 if block.training else x,
    "note": lambda block, x: x * 2 if block.note else x,
    "own note": lambda block, x: x * len(vars(block)) if hasattr(block, "late") else x,
    "child": lambda block, x: x * sum(1 for _ in block.children()),
    "parameters": lambda block, x: x * sum(p.numel() for p in block.parameters() if p.requires_grad),
    "same tensor": lambda block, x: x * 2 if block.norm.weight is block.norm.bias else x,
    "write": _write,
    "write an attribute": _attribute_write,
    "count": _count,
    "experts": _experts,
    "positions": _positions,
    "mask": _mask,
    "in place": _in_place,
    "in place on the input": lambda block, x: x.add_(1),
    "cast": _cast,
    "sizes": _sizes,
    "views": _views,
    "no gradient": _no_gradient,
    "low precision": _low_precision,
    "complex": _complex,
    "literal": lambda block, x: x + torch.tensor([1.0] * WIDTH, dtype=x.dtype),
    "zeros": lambda block, x: x + x.new_zeros(x.shape[1], 1) + torch.ones(WIDTH).sum().to(x.dtype),
    "dtype": lambda block, x: x * 2 if x.dtype is torch.bfloat16 else x + 1,
    "default dtype": lambda block, x: x + torch.ones(WIDTH).sum().item().__class__(1),
    "contiguous": lambda block, x: x * (2 if x.is_contiguous() else 3),
    "strides": lambda block, x: x * (x.stride(0) > x.stride(1)),
    "gradient mode": lambda block, x: x * (2 if torch.is_grad_enabled() else 3),
    "gradient of the input": lambda block, x: x * (2 if x.requires_grad else 3),
    "leaf": lambda block, x: x * (2 if x.is_leaf else 3),
    "view of something": lambda block, x: x * (2 if x._base is None else 3),
    "detach": lambda block, x: x + x.detach() * 0.1,
    "sizes that are compared": lambda block, x: x * (2 if x.shape[1] > 2 else 3),
    "sort": lambda block, x: x + torch.sort(x, -1).values,
    "largest": lambda block, x: x + x.max(-1, keepdim=True)[0],
    "gather": lambda block, x: x + x.gather(1, torch.zeros_like(x, dtype=torch.int64)),
    "unused": lambda block, x: (torch.stack([x, x]), x)[1],
    "stack": lambda block, x: torch.stack([x, x * 2], 0).unbind(0)[1],
    "split sizes": lambda block, x: torch.cat(x.split([3, WIDTH - 3], -1)[::-1], -1),
    "slice to the size": lambda block, x: x[:, : x.shape[1]] + x[:, -1:],
    "pad": lambda block, x: F.pad(x, (0, 0, 1, 0))[:, 1:],
    "cumulative": lambda block, x: x.cumsum(1) * 0.1,
    "einsum": lambda block, x: x + torch.einsum("bsd,btd->bst", x, x).softmax(-1) @ x,
    "where": lambda block, x: torch.where(x > 0, x, x * 0.1),
    "masked": lambda block, x: x.masked_fill(x < 0, 0.0),
    "transposed": lambda block, x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "transposed view": lambda block, x: x.transpose(0, 1).transpose(0, 1),
    "expand": lambda block, x: x.mean(1, keepdim=True).expand_as(x) + x,
    "nothing": lambda block, x: x,
    "dropout": lambda block, x: F.dropout(x, 0.5, block.training),
}


@dataclass(frozen=True)
class Plan:
    """A model.

    Args:
        count: Of blocks.
        steps: What each block does, by name.
        change: What is different.
        places: Where it is different.
        call: How the blocks are called.
    """

    count: int
    steps: tuple[str, ...]
    change: str
    places: frozenset[int]
    call: str


class Model(nn.Module):
    """Calls its blocks, some of them in another way."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.shared = nn.Linear(WIDTH, 2 * WIDTH)
        self.blocks = nn.ModuleList(Block(at, plan.steps) for at in range(plan.count))
        self.plan = plan
        self.register_buffer("table", torch.arange(float(WIDTH)))

    def forward(self, x: torch.Tensor) -> Any:
        kept: list[torch.Tensor] = []
        x = self.first(x)
        start = x
        for at, block in enumerate(self.blocks):
            around = CHANGES[self.plan.change] if at in self.plan.places else None
            x = CALLS[self.plan.call](self, block, x, start, kept, around)
        return [x * (1 + sum(block.note or 0 for block in self.blocks)), *kept]


def _called(around: Any, block: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if getattr(around, "is_around", False):
        return around(block, x, *args, **kwargs)
    return block(x, *args, **kwargs)


def _collecting(model: Model, block: Any, x: torch.Tensor, start: Any, kept: Any, around: Any) -> Any:
    kept.append(x)
    return _called(around, block, x)


def _pair(model: Model, block: Any, x: torch.Tensor, start: Any, kept: Any, around: Any) -> Any:
    return _called(around, lambda x: block((x, start))[0], x)


CALLS: dict[str, Callable[..., Any]] = {
    "plain": lambda m, block, x, start, kept, around: _called(around, block, x),
    "collecting": _collecting,
    "collecting inside": lambda m, block, x, start, kept, around: _called(around, block, x, into=kept),
    "start": lambda m, block, x, start, kept, around: _called(around, block, x, start),
    "the same twice": lambda m, block, x, start, kept, around: _called(around, block, x, x),
    "a view": lambda m, block, x, start, kept, around: _called(around, block, x, x.view_as(x)),
    "list": lambda m, block, x, start, kept, around: _called(around, block, x, [start, x]),
    "buffer": lambda m, block, x, start, kept, around: _called(around, block, x, m.table),
    "mapping": lambda m, block, x, start, kept, around: _called(around, block, x, {"a": start, "b": x * 2}),
    "mask": lambda m, block, x, start, kept, around: _called(around, block, x, extra=(start > 0).float()),
    "pair": _pair,
    "residual": lambda m, block, x, start, kept, around: x + _called(around, block, x),
    "size": lambda m, block, x, start, kept, around: _called(around, block, x, by=x.shape[1] * 0.1),
    "sizes": lambda m, block, x, start, kept, around: _called(around, block, x, by=start.shape[0]),
}


def _around(function: Any) -> Any:
    function.is_around = True
    return function


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _in(context: Callable[[], Any]) -> Any:
    def around(block: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with context():
            return block(x, *args, **kwargs)

    return _around(around)


def _given(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return _around(lambda block, x, *args, **kwargs: block(change(x), *args, **kwargs))


def _by(number: Any) -> Any:
    return _around(lambda block, x, *args, **kwargs: block(x, *args, **{"by": number, **kwargs}))


def _set(name: str, value: Any) -> Callable[[Model, Block], None]:
    def change(model: Model, block: Block) -> None:
        owner: Any = block
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, value() if callable(value) and not isinstance(value, nn.Module) else value)

    return change


def _hook(change: Callable[[torch.Tensor], torch.Tensor], name: str = "") -> Callable[[Model, Block], None]:
    def install(model: Model, block: Block) -> None:
        def hook(module: nn.Module, args: Any, result: Any) -> Any:
            return (change(result[0]), *result[1:]) if isinstance(result, tuple) else change(result)

        block.get_submodule(name).register_forward_hook(hook)

    return install


def _pre_hook(model: Model, block: Block) -> None:
    block.up.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _patched(model: Model, block: Block) -> None:
    stock = block.up.forward
    block.up.forward = lambda x: stock(x) * 2  # type: ignore[method-assign]


def _patched_block(model: Model, block: Block) -> None:
    def forward(*args: Any, **kwargs: Any) -> Any:
        result = Block.forward(block, *args, **kwargs)
        return (result[0] * 2, *result[1:]) if isinstance(result, tuple) else result * 2

    block.forward = forward  # type: ignore[method-assign]


def _tied(model: Model, block: Block) -> None:
    block.norm.bias = block.norm.weight


def _tied_to_another(model: Model, block: Block) -> None:
    block.shift = model.blocks[0].shift


def _shared_child(model: Model, block: Block) -> None:
    block.up.weight = model.shared.weight


def _shared_buffer(model: Model, block: Block) -> None:
    block.seen = model.blocks[0].seen


def _setting(model: Model, block: Block) -> None:
    block.settings["scale"][1] = 3.0


def _shared_setting(model: Model, block: Block) -> None:
    block.settings["scale"] = model.blocks[0].settings["scale"]


def _only_one_without_note(model: Model, block: Block) -> None:
    for other in model.blocks:
        other.note = None if other is block else WIDTH


def _negative_zero(model: Model, block: Block) -> None:
    for other in model.blocks:
        other.inner.by = -0.0 if other is block else 0.0


def _truth_in_a_set(model: Model, block: Block) -> None:
    for other in model.blocks:
        other.settings["scale"] = [1.0, *({True} if other is block else {1.0})]


def _frozen(model: Model, block: Block) -> None:
    block.up.weight.requires_grad_(False)


def _another_child(model: Model, block: Block) -> None:
    block.add_module("late", nn.Identity())


CHANGES: dict[str, Any] = {
    "nothing": lambda model, block: None,
    "flag": _set("flag", True),
    "note": _set("note", 1),
    "equal note of another type": _set("inner.by", 1),
    "factor inside": _set("inner.by", 2.0),
    "true for one": _set("inner.by", True),
    "attribute that others lack": _set("late", 1),
    "attribute over the class": _set("factor", 2),
    "setting": _setting,
    "shared setting": _shared_setting,
    "training": lambda model, block: block.train(),
    "training inside": lambda model, block: block.inner.drop.train(),
    "training without its children": _set("training", True),
    "hook": _hook(lambda x: x * 2),
    "hook that does nothing": _hook(lambda x: x),
    "hook inside": _hook(lambda x: x * 2, "up"),
    "hook before": _pre_hook,
    "patched inside": _patched,
    "patched": _patched_block,
    "no bias": _set("down.bias", lambda: None),
    "no weight": _set("norm.weight", lambda: None),
    "tied": _tied,
    "tied to another block": _tied_to_another,
    "tied to the model": _shared_child,
    "shared buffer": _shared_buffer,
    "only one without a note": _only_one_without_note,
    "negative zero": _negative_zero,
    "truth in a set": _truth_in_a_set,
    "frozen": _frozen,
    "epsilon": _set("norm.eps", 0.1),
    "strides": _set("up.weight", lambda: nn.Parameter(torch.ones(WIDTH, 2 * WIDTH).t())),
    "larger": _set("norm", lambda: nn.LayerNorm((1, WIDTH)[1:])),
    "another class": _set("norm", lambda: nn.RMSNorm(WIDTH)),
    "another child": _another_child,
    "buffer of another dtype": _set("table", lambda: torch.arange(WIDTH)),
    "buffer that is a view": _set("table", lambda: torch.arange(2.0 * WIDTH)[::2]),
    "buffer that is expanded": _set("table", lambda: torch.ones(1).expand(WIDTH)),
    "without gradients": _in(torch.no_grad),
    "in autocast": _in(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "without autocast": _in(lambda: torch.autocast("cpu", enabled=False)),
    "in another default dtype": _in(lambda: _default_dtype(torch.float64)),
    "in bfloat16": _in(lambda: _default_dtype(torch.bfloat16)),
    "deterministic": _in(_deterministic),
    "attention by its definition": _in(lambda: nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH)),
    "on the default device": _in(lambda: torch.device("cpu")),
    "detached": _given(torch.detach),
    "clone": _given(torch.clone),
    "view": _given(lambda x: x.view_as(x)),
    "transposed memory": _given(lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)),
    "cast": _given(lambda x: x.double().float()),
    "part of something": _given(lambda x: torch.cat([x, x], -1)[..., :WIDTH]),
    "expanded": _given(lambda x: x[:, :1].expand_as(x)),
    "written before": _given(lambda x: x.clone().add_(1)),
    "rows": _given(lambda x: x[:1].repeat(x.shape[0], 1, 1)),
    "fewer": _given(lambda x: torch.cat([x[:, 1:], x[:, :1]], 1)),
    "twice": _around(lambda block, x, *args, **kw: block(block(x, *args, **kw), *args, **kw)),
    "integer": _by(2),
    "float": _by(2.0),
    "boolean": _by(True),
    "float that equals one": _by(1.0),
    "number in a tensor": _around(lambda block, x, *args, **kw: block(x, *args, **{"by": x.mean(), **kw})),
    "another line": _around(lambda block, x, *args, **kw: block(x, *args, **kw)),
    "nothing extra": _around(lambda block, x, *args, **kw: block(x)),
    "float32 extra": _around(lambda block, x, *args, **kw: block(x, torch.ones(WIDTH))),
    "integer extra": _around(lambda block, x, *args, **kw: block(x, torch.ones(WIDTH, dtype=torch.int64))),
    "scalar extra": _around(lambda block, x, *args, **kw: block(x, torch.ones(()))),
}


def built(plan: Plan) -> Model:
    """The model of a plan, in the state of a fresh process."""
    torch.manual_seed(0)
    COUNTED[0] = 0
    model = Model(plan).eval()
    change = CHANGES[plan.change]
    for at in plan.places if not getattr(change, "is_around", False) else ():
        change(model, model.blocks[at])
    return model
