"""Failing models of many kinds, what the printed fix says, and the same model with the fix followed."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


"""
MODEL = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
{init}

    def forward(self, {signature}):
{body}


def factory():
    return Model(), ({args},)
"""


@dataclass(frozen=True)
class Failing:
    """A model that fails, and its repair.

    Args:
        code: The rule.
        fix: A part of the printed fix; `{file}` is the name of the file.
        before, after: The body of `forward`, as it fails and with the fix followed.
        args: Example inputs.
        signature, init: Of `forward`; the body of the constructor.
        init_after: The constructor with the fix followed, where the fix is there.
        is_same: Whether both compute the same in eager mode; not where the failing one raises there as well.
        target: What it is checked for.
        problems: Codes of what is found after it.
        until: The first torch that exports it as it is.
    """

    code: str
    fix: str
    before: str
    after: str
    args: str = "torch.randn(4)"
    signature: str = "x"
    init: str = "pass"
    init_after: str | None = None
    is_same: bool = True
    target: str = "cpu"
    problems: tuple[str, ...] = ()
    until: str = "9"

    def source(self, *, repaired: bool) -> str:
        init = self.init if not repaired or self.init_after is None else self.init_after
        body = self.after if repaired else self.before
        return HEAD + MODEL.format(
            init=_indented(init), signature=self.signature, body=_indented(body), args=self.args
        )


def _indented(text: str) -> str:
    return "\n".join(f"        {line}" for line in text.strip().splitlines())


LINEAR = "self.linear = nn.Linear({}, 6)"
CORPUS = {
    "branch with two returns": Failing(
        "FE201",
        "choose with `torch.where`",
        "if x.sum() > 0:\n    return x + 1\nreturn x - 1",
        "return torch.where(x.sum() > 0, x + 1, x - 1)",
    ),
    "mask that may be None": Failing(
        "FE201",
        "leave `mask.any()` out of the condition",
        "if mask is not None and mask.any():\n    x = x.masked_fill(mask, 0.0)\nreturn x",
        "if mask is not None:\n    x = x.masked_fill(mask, 0.0)\nreturn x",
        "torch.randn(4), torch.zeros(4, dtype=torch.bool)",
        "x, mask=None",
    ),
    "mask that is dropped": Failing(
        "FE201",
        "remove these lines: `mask` is then always applied",
        "if mask.all():\n    mask = None\nreturn x if mask is None else x.masked_fill(~mask, 0.0)",
        "return x if mask is None else x.masked_fill(~mask, 0.0)",
        "torch.randn(4), torch.ones(4, dtype=torch.bool)",
        "x, mask",
    ),
    "padding that is dropped": Failing(
        "FE201",
        "remove these lines: `padding` is then always applied",
        "if not padding.any():\n    padding = None\n"
        "return x if padding is None else x.masked_fill(padding, 0.0)",
        "return x if padding is None else x.masked_fill(padding, 0.0)",
        "torch.randn(4), torch.zeros(4, dtype=torch.bool)",
        "x, padding",
    ),
    "assertion on values": Failing(
        "FE201",
        "`assert torch.compiler.is_exporting() or ((x >= 0).all() or (x < 0).all())`",
        "assert (x >= 0).all() or (x < 0).all(), 'mixed'\nreturn x.abs()",
        "assert torch.compiler.is_exporting() or ((x >= 0).all() or (x < 0).all()), 'mixed'\nreturn x.abs()",
        "torch.rand(4)",
    ),
    "check that raises": Failing(
        "FE201",
        "`if not torch.compiler.is_exporting() and (torch.isnan(x).any() and x.max() > 3):`",
        "if torch.isnan(x).any() and x.max() > 3:\n    raise ValueError('nan')\nreturn x * 2",
        "if not torch.compiler.is_exporting() and (torch.isnan(x).any() and x.max() > 3):\n"
        "    raise ValueError('nan')\nreturn x * 2",
    ),
    "conditional expression": Failing(
        "FE201",
        "`torch.where(x.mean() > 0, 2.0, 0.5)`",
        "scale = 2.0 if x.mean() > 0 else 0.5\nreturn x * scale",
        "scale = torch.where(x.mean() > 0, 2.0, 0.5)\nreturn x * scale",
    ),
    "torch.equal": Failing(
        "FE201",
        "compare with `(x == y).all()`",
        "return x if torch.equal(x, y) else y * 2",
        "return torch.where((x == y).all(), x, y * 2)",
        "torch.randn(4), torch.randn(4)",
        "x, y",
    ),
    "torch.allclose": Failing(
        "FE201",
        "`torch.isclose(x, torch.zeros_like(x)).all()`",
        "if torch.allclose(x, torch.zeros_like(x)):\n    return x\nreturn x / 2",
        "return torch.where(torch.isclose(x, torch.zeros_like(x)).all(), x, x / 2)",
    ),
    "bool of a tensor": Failing(
        "FE201",
        "keep the tensor `flag`, without `bool`",
        "use = bool(flag)\nreturn x * 2 if use else x",
        "use = flag\nreturn torch.where(use, x * 2, x)",
        "torch.randn(4), torch.tensor(True)",
        "x, flag",
    ),
    "one of several values": Failing(
        "FE201",
        "`torch.isin(token, torch.tensor([1, 2], device=token.device))`",
        "if token in (1, 2):\n    return x * 2\nreturn x",
        "return torch.where(torch.isin(token, torch.tensor([1, 2], device=token.device)), x * 2, x)",
        "torch.randn(4), torch.tensor(1)",
        "x, token",
    ),
    "sorted": Failing(
        "FE201", "use `x.sort().values`", "return torch.stack(sorted(x))", "return x.sort().values"
    ),
    "while": Failing(
        "FE204",
        "run a fixed number of iterations with `torch.where`",
        "while x.norm() > 1:\n    x = x / 2\nreturn x",
        "for _ in range(8):\n    x = torch.where(x.norm() > 1, x / 2, x)\nreturn x",
        "torch.ones(4) * 9",
    ),
    "number of iterations": Failing(
        "FE203",
        "loop a fixed number of times",
        "for _ in range(steps.item()):\n    x = x * 0.5\nreturn x",
        "for i in range(5):\n    x = torch.where(i < steps, x * 0.5, x)\nreturn x",
        "torch.randn(4), torch.tensor(3)",
        "x, steps",
    ),
    "index of a list of modules": Failing(
        "FE203",
        "compute all results and pick one: `torch.stack(results)[which]`",
        "return self.layers[int(which)](x)",
        "results = [layer(x) for layer in self.layers]\nreturn torch.stack(results)[which]",
        "torch.randn(2, 4), torch.tensor(1)",
        "x, which",
        "self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))",
    ),
    "index of 0-d tensors": Failing(
        "FE203",
        "`seen[torch.stack(rows), torch.stack(columns)]`",
        "rows, columns = zip(*places)\nseen = torch.zeros_like(x)\n"
        "seen[rows, columns] = 1.0\nreturn x * seen",
        "rows, columns = zip(*places)\nseen = torch.zeros_like(x)\n"
        "seen[torch.stack(rows), torch.stack(columns)] = 1.0\nreturn x * seen",
        "torch.randn(4, 4), torch.tensor([[0, 1], [2, 3]])",
        "x, places",
    ),
    "index of 0-d tensors on a GPU": Failing(
        "FE203",
        "`x[torch.stack(rows), first]`",
        "rows, columns = zip(*places)\nfirst = 0\nreturn x[rows, first]",
        "rows, columns = zip(*places)\nfirst = 0\nreturn x[torch.stack(rows), first]",
        "torch.randn(4, 4), torch.tensor([[0, 1], [2, 3]])",
        "x, places",
        target="H100",
    ),
    "greatest length": Failing(
        "FE203",
        "`n = lengths.max().item()`, `torch._check(n >= 0)`, `torch._check(n <= limit)`",
        "n = int(lengths.max())\nreturn x[:, :n]",
        "n = lengths.max().item()\ntorch._check(n >= 0)\ntorch._check(n <= x.shape[1])\nreturn x[:, :n]",
        "torch.randn(2, 6), torch.tensor([3, 6])",
        "x, lengths",
    ),
    "greatest length and one more": Failing(
        "FE203",
        "`n = lengths.max().item() + 1`, `torch._check(n >= 0)`, `torch._check(n <= limit)`; if it is the "
        "index of a list, compute all results and pick one: `torch.stack(results)[lengths.max() + 1]`",
        "n = int(lengths.max().item() + 1)\nreturn x[:, :n]",
        "n = lengths.max().item() + 1\ntorch._check(n >= 0)\ntorch._check(n <= x.shape[1])\nreturn x[:, :n]",
        "torch.randn(2, 7), torch.tensor([3, 5])",
        "x, lengths",
    ),
    "size of an interpolation": Failing(
        "FE203",
        "`n = size.max().item()`, `torch._check(n >= 0)`",
        "n = int(size.max())\nreturn F.interpolate(x, size=(n, n))",
        "n = size.max().item()\ntorch._check(n >= 0)\ntorch._check(n <= 64)\n"
        "return F.interpolate(x, size=(n, n))",
        "torch.randn(1, 3, 8, 8), torch.tensor([16, 16])",
        "x, size",
    ),
    "Python's max": Failing(
        "FE203",
        "use `lengths.max().item()` instead of Python's `max`",
        "return x[: max(lengths)]",
        "n = lengths.max().item()\ntorch._check(n <= x.shape[0])\nreturn x[:n]",
        "torch.randn(6), torch.tensor([2, 4])",
        "x, lengths",
    ),
    "formatted number": Failing(
        "FE203",
        "`if not torch.compiler.is_exporting():`",
        "text = f'{x.mean().item():.2f}'\nreturn x + len(text) * 0",
        "if not torch.compiler.is_exporting():\n    text = f'{x.mean().item():.2f}'\nreturn x + 0",
    ),
    "math": Failing(
        "FE203",
        "compute it on the tensor, without `.item()`: `torch.sqrt(n)`",
        "return x / math.sqrt(n.item())",
        "return x / torch.sqrt(n)",
        "torch.randn(4), torch.tensor(4)",
        "x, n",
    ),
    "rows of nonzero": Failing(
        "FE301",
        "with `[[i] for i in range(F.one_hot(choice, 4).sum(0).shape[0])]` instead of `hit`, where",
        "out = torch.zeros_like(x)\nhit = F.one_hot(choice, 4).sum(0).nonzero()\nfor expert in hit:\n"
        "    index = expert[0]\n    rows = torch.where(choice == index)[0]\n"
        "    out.index_add_(0, rows, x[rows] @ self.weights[index])\nreturn out",
        "out = torch.zeros_like(x)\nhit = F.one_hot(choice, 4).sum(0).nonzero()\n"
        "for expert in [[i] for i in range(F.one_hot(choice, 4).sum(0).shape[0])]:\n"
        "    index = expert[0]\n    rows = torch.where(choice == index)[0]\n"
        "    out.index_add_(0, rows, x[rows] @ self.weights[index])\nreturn out",
        "torch.randn(6, 8), torch.tensor([0, 1, 1, 3, 0, 2])",
        "x, choice",
        "self.weights = nn.Parameter(torch.randn(4, 8, 8))",
    ),
    "experts of a dictionary": Failing(
        "FE301",
        "with `[[i] for i in range(mask.shape[0])]` instead of `hit`",
        "out = torch.zeros_like(x)\nmask = F.one_hot(choice, 3).permute(2, 1, 0)\n"
        "with torch.no_grad():\n    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()\n"
        "for i in hit:\n    place, row = torch.where(mask[i].squeeze(0))\n"
        "    part = self.experts[f'expert_{i[0]}'](x[row])\n"
        "    part *= 2\n    out.index_add_(0, row, part)\nreturn out",
        "out = torch.zeros_like(x)\nmask = F.one_hot(choice, 3).permute(2, 1, 0)\n"
        "for i in [[i] for i in range(mask.shape[0])]:\n    place, row = torch.where(mask[i].squeeze(0))\n"
        "    part = self.experts[f'expert_{i[0]}'](x[row])\n"
        "    part *= 2\n    out.index_add_(0, row, part)\nreturn out",
        "torch.randn(6, 4), torch.tensor([[0, 1], [1, 1], [1, 0], [0, 0], [0, 1], [1, 0]])",
        "x, choice",
        "torch.manual_seed(0)\n"
        "self.experts = nn.ModuleDict({f'expert_{i}': nn.Linear(4, 4) for i in range(3)})",
    ),
    "rows of nonzero, read as numbers": Failing(
        "FE301",
        "with `range((choice[:, None] == torch.arange(4)).sum(0).shape[0])` instead of `hit` "
        "and `row` instead of `int(row.item())`",
        "out = torch.zeros_like(x)\nhit = (choice[:, None] == torch.arange(4)).sum(0).nonzero()\n"
        "for row in hit:\n    index = int(row.item())\n    rows = torch.where(choice == index)[0]\n"
        "    out.index_add_(0, rows, x[rows] * index)\nreturn out",
        "out = torch.zeros_like(x)\n"
        "for row in range((choice[:, None] == torch.arange(4)).sum(0).shape[0]):\n    index = row\n"
        "    rows = torch.where(choice == index)[0]\n"
        "    out.index_add_(0, rows, x[rows] * index)\nreturn out",
        "torch.randn(6, 8), torch.tensor([0, 1, 1, 3, 0, 1])",
        "x, choice",
        problems=("FE203",),
    ),
    "step without rows": Failing(
        "FE301",
        "`if not torch.compiler.is_exporting() and rows.numel() == 0:`",
        "out = torch.zeros_like(x)\nfor i in range(4):\n    rows = torch.where(choice == i)[0]\n"
        "    if rows.numel() == 0:\n        continue\n"
        "    part = x[rows]\n    part *= i\n    out.index_add_(0, rows, part)\nreturn out",
        "out = torch.zeros_like(x)\nfor i in range(4):\n    rows = torch.where(choice == i)[0]\n"
        "    if not torch.compiler.is_exporting() and rows.numel() == 0:\n        continue\n"
        "    part = x[rows]\n    part *= i\n    out.index_add_(0, rows, part)\nreturn out",
        "torch.randn(6, 8), torch.tensor([0, 1, 1, 3, 0, 1])",
        "x, choice",
    ),
    "size in a part of an expression": Failing(
        "FE301",
        "state before this line what always holds: `torch._check(n > 1)`, or `torch._check(n <= 1)`",
        "n = mask.nonzero().shape[0]\nis_many = n > 1 and self.training is False\n"
        "return x * 2 if is_many else x",
        "n = mask.nonzero().shape[0]\ntorch._check(n > 1)\nis_many = n > 1 and self.training is False\n"
        "return x * 2 if is_many else x",
        "torch.randn(8), torch.ones(8, dtype=torch.bool)",
        "x, mask",
    ),
    "values of unique": Failing(
        "FE301",
        "loop over every possible index, `for i in range(number):`",
        "return torch.stack([(x * (ids == i)).sum() for i in ids.unique()])",
        "return torch.stack([(x * (ids == i)).sum() for i in range(3)])",
        "torch.randn(6), torch.tensor([0, 0, 1, 1, 2, 2])",
        "x, ids",
    ),
    "empty selection": Failing(
        "FE301",
        "`torch._check(picked.numel() > 0)`",
        "picked = x[x > 0]\nif picked.numel() == 0:\n    return x.sum()\nreturn picked.mean()",
        "picked = x[x > 0]\ntorch._check(picked.numel() > 0)\nif picked.numel() == 0:\n    return x.sum()\n"
        "return picked.mean()",
        "torch.arange(4.0)",
    ),
    "selection as a condition": Failing(
        "FE301",
        "state before this line what always holds: `torch._check(picked.numel() > 0)`",
        "picked = x[x > 0]\nif not picked.numel():\n    return x.sum()\nreturn picked.mean()",
        "picked = x[x > 0]\ntorch._check(picked.numel() > 0)\nif not picked.numel():\n    return x.sum()\n"
        "return picked.mean()",
        "torch.arange(4.0)",
    ),
    "first row of a selection": Failing(
        "FE301",
        "state before the slice that there is a row, with the size of what is sliced: "
        "`torch._check(rows.shape[0] > 0)`",
        "rows = mask.nonzero()\nreturn rows - rows[:1]",
        "rows = mask.nonzero()\ntorch._check(rows.shape[0] > 0)\nreturn rows - rows[:1]",
        "torch.randn(8), torch.ones(8, dtype=torch.bool)",
        "x, mask",
    ),
    "len of a selection": Failing(
        "FE301",
        "use `rows.shape[0]` instead of `len`, and state what always holds",
        "rows = mask.nonzero()\nif len(rows) > 2:\n    return x * 2\nreturn x",
        "rows = mask.nonzero()\ntorch._check(rows.shape[0] > 2)\n"
        "if rows.shape[0] > 2:\n    return x * 2\nreturn x",
        "torch.randn(8), torch.ones(8, dtype=torch.bool)",
        "x, mask",
    ),
    "parts of a selection": Failing(
        "FE301",
        "keep the shape fixed and mask with `torch.where`",
        "kept = x[x > 0]\nreturn torch.stack([part.sum() for part in kept.chunk(2)]).sum()",
        "kept = torch.where(x > 0, x, 0)\nreturn torch.stack([part.sum() for part in kept.chunk(2)]).sum()",
        "torch.randn(8)",
    ),
    "NumPy": Failing(
        "FE205",
        "compute it with torch operators",
        "return x[torch.as_tensor(np.argsort(x.numpy()))]",
        "return x[x.argsort()]",
    ),
    "device literal": Failing(
        "FE502",
        "create it on the device of the other one, `device=x.device`",
        "return x + torch.arange(x.shape[1], device='cpu')",
        "return x + torch.arange(x.shape[1], device=x.device)",
        "torch.randn(2, 6)",
        target="H100",
    ),
    "linear of another width": Failing(
        "FE202",
        "the input has 6 features and the weight expects 5",
        "return self.linear(x)",
        "return self.linear(x)",
        "torch.randn(2, 6)",
        init=LINEAR.format(5),
        init_after=LINEAR.format(6),
        is_same=False,
    ),
    "convolution of other channels": Failing(
        "FE202",
        "`in_channels=6`",
        "return self.conv(x)",
        "return self.conv(x)",
        "torch.randn(2, 6, 8, 8)",
        init="self.conv = nn.Conv2d(3, 4, 3)",
        init_after="self.conv = nn.Conv2d(6, 4, 3)",
        is_same=False,
    ),
    "view of another size": Failing(
        "FE202",
        "sizes whose product is 12; one of them may be -1",
        "return x.view(2, 5)",
        "return x.view(2, -1)",
        "torch.randn(2, 6)",
        is_same=False,
    ),
    "attribute of None": Failing(
        "FE202",
        "the value before `.sum` is not None",
        "return x + self.bias.sum()",
        "return x + self.bias.sum()",
        "torch.randn(2, 6)",
        init="self.bias = None",
        init_after="self.bias = nn.Parameter(torch.ones(6))",
        is_same=False,
    ),
    "attribute that is not there": Failing(
        "FE202",
        "assign `self.projection` in the constructor of Model",
        "return self.projection(x)",
        "return self.projection(x)",
        "torch.randn(2, 6)",
        init=LINEAR.format(6),
        init_after="self.projection = nn.Linear(6, 6)",
        is_same=False,
    ),
    "package that is not there": Failing(
        "FE202",
        "or do not import it here",
        "import a_package_that_is_not_there\n\nreturn x + 1",
        "return x + 1",
        is_same=False,
    ),
    "indices of floats": Failing(
        "FE202",
        "`.long()` here",
        "return self.table(x)",
        "return self.table(x.long())",
        "torch.ones(2)",
        init="self.table = nn.Embedding(6, 6)",
        is_same=False,
    ),
    "module cast in forward": Failing(
        "FE208",
        "remove this line, and write `torch.func.functional_call(self.norm, {name: each.to(x.dtype) "
        "for name, each in self.norm.named_parameters()}, x)` instead of `self.norm(x)`",
        "self.norm.to(x.dtype)\nreturn self.norm(x)",
        "return torch.func.functional_call(self.norm, {name: each.to(x.dtype) for name, "
        "each in self.norm.named_parameters()}, x)",
        "torch.randn(2, 6)",
        init="self.norm = nn.LayerNorm(6)",
    ),
    "module with buffers cast in forward": Failing(
        "FE208",
        "create the module with that dtype and device in the constructor",
        "self.norm.to(x.dtype)\nreturn self.norm(x)",
        "return self.norm(x)",
        "torch.randn(2, 6, 4)",
        init="self.norm = nn.BatchNorm1d(6).eval()",
    ),
    "counter": Failing(
        "FE912",
        "register it as a buffer and write into that",
        "self.calls = self.calls + 1\nreturn x * self.calls",
        "self.calls += 1\nreturn x * self.calls",
        init="self.calls = 0",
        init_after="self.register_buffer('calls', torch.zeros(()))",
    ),
    "print": Failing("FE906", "remove it", "print(x.shape)\nreturn x + 1", "return x + 1"),
    "tensors of other sizes, joined": Failing(
        "FE202",
        "make the tensors have size 2 in dimension 0",
        "return torch.cat([x, torch.zeros(3, 4)], dim=1)",
        "return torch.cat([x, torch.zeros(2, 4)], dim=1)",
        "torch.randn(2, 6)",
        is_same=False,
    ),
    "tensors of other sizes, added": Failing(
        "FE202",
        "make the other tensor's size at -1 that of [2, 6], or 1",
        "return x + torch.zeros(4)",
        "return x + torch.zeros(1)",
        "torch.randn(2, 6)",
        is_same=False,
    ),
    "copy of a module": Failing(
        "FE202",
        "do this in the constructor",
        "import copy\n\nreturn copy.deepcopy(self.linear)(x)",
        "return self.copied(x)",
        "torch.ones(2, 6)",
        init="torch.manual_seed(0)\nself.linear = nn.Linear(6, 6)",
        init_after="import copy\n\ntorch.manual_seed(0)\nself.linear = nn.Linear(6, 6)\n"
        "self.copied = copy.deepcopy(self.linear)",
    ),
    "loop that ends early": Failing(
        "FE201",
        "`if not torch.compiler.is_exporting() and (x > 9000).all():`",
        "for _ in range(3):\n    x = x * 2\n    if (x > 9000).all():\n        break\nreturn x",
        "for _ in range(3):\n    x = x * 2\n"
        "    if not torch.compiler.is_exporting() and (x > 9000).all():\n        break\nreturn x",
    ),
    "rows that a mask may set": Failing(
        "FE201",
        "remove the condition: where nothing is set in `mask`",
        "x = x.clone()\nif mask.any():\n    x[mask] = x.max()\nreturn x",
        "x = x.clone()\nx[mask] = x.max()\nreturn x",
        "torch.randn(4), torch.zeros(4, dtype=torch.bool)",
        "x, mask",
    ),
    "distribution that checks its arguments": Failing(
        "FE201",
        "`torch.distributions.Categorical(logits=x, validate_args=False)`",
        "return torch.distributions.Categorical(logits=x, validate_args=True).entropy()",
        "return torch.distributions.Categorical(logits=x, validate_args=False).entropy()",
        until="2.15",
    ),
    "number that is the same for every input": Failing(
        "FE203",
        "if `[x] * n` is the same number for every input, pass `--assume {file}:16=1` with that number "
        "instead of 1: the program then refuses other inputs",
        "n = lengths.max().item()\nreturn sum([x] * n)",
        "n = lengths.max().item()\nreturn sum([x] * n)",
        "torch.randn(2, 6), torch.tensor([1, 1])",
        "x, lengths",
    ),
    "list of as many tensors as data say": Failing(
        "FE203",
        "`x.expand(n, *x.shape)` instead of `torch.stack([x] * n)`",
        "n = lengths.max().item()\nreturn torch.stack([x] * n)",
        "n = lengths.max().item()\nreturn x.expand(n, *x.shape)",
        "torch.randn(2, 6), torch.tensor([1, 3])",
        "x, lengths",
    ),
    "list of as many tensors as rows are missing": Failing(
        "FE301",
        "`last.expand(8 - rows.shape[0], *last.shape)` instead of "
        "`torch.stack([last] * (8 - rows.shape[0]))`",
        "rows, last = x[mask], x[-1]\nreturn torch.cat([rows, torch.stack([last] * (8 - rows.shape[0]))])",
        "rows, last = x[mask], x[-1]\nreturn torch.cat([rows, last.expand(8 - rows.shape[0], *last.shape)])",
        "torch.randn(8, 2), torch.arange(8) > 2",
        "x, mask",
    ),
    "branch that no input takes": Failing(
        "FE201",
        "if `mask.any()` is False for every input, pass `--assume {file}:15=False`: the program then refuses",
        "if mask.any():\n    return x.masked_select(mask).sum()\nreturn x + 1",
        "if mask.any():\n    return x.masked_select(mask).sum()\nreturn x + 1",
        "torch.randn(4), torch.zeros(4, dtype=torch.bool)",
        "x, mask",
    ),
    "flag that no input sets": Failing(
        "FE201",
        "pass `--assume {file}:16=False`",
        "flag = mask.any().item()\nif flag:\n    x = x * 2\nif flag:\n    x = x - 1\nreturn x + 1",
        "flag = mask.any().item()\nif flag:\n    x = x * 2\nif flag:\n    x = x - 1\nreturn x + 1",
        "torch.randn(4), torch.zeros(4, dtype=torch.bool)",
        "x, mask",
    ),
    # The fix names a general remedy, and which one applies is left to the reader.
    "rows that are kept one by one": Failing(
        "FE201",
        "compute both sides and choose with `torch.where`",
        "out = []\nfor i, flag in enumerate(mask):\n    if flag:\n        out.append(x[i])\n"
        "return torch.stack(out)",
        "out = []\nfor i, flag in enumerate(mask):\n    out.append(torch.where(flag, x[i], None))\n"
        "return torch.stack(out)",
        "torch.randn(3), torch.tensor([True, False, True])",
        "x, mask",
    ),
    "key of a dictionary": Failing(
        "FE203",
        "use a number that is known without the data",
        "return self.heads[str(task.item())](x)",
        "return self.heads[str(task.shape)](x)",
        "torch.randn(2, 4), torch.tensor(1)",
        "x, task",
        "self.heads = nn.ModuleDict({'0': nn.Linear(4, 4), '1': nn.Linear(4, 4)})",
    ),
}
