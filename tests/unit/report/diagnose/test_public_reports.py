"""Models of public bug reports about exports: what the check says of each, and what the program computes.

A report is named by its thread, `owner/repository#number`. The models are written from its facts.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import fakexport as fe

pytestmark = pytest.mark.filterwarnings("ignore")  # What torch thinks of them.
torch.manual_seed(0)
X = torch.linspace(-1, 1, 12).reshape(3, 4)
SEEN = torch.tensor([[False, False, False, True, True], [False, False, False, False, True]])


def rows(*numbers):
    return [(torch.randn(n, 4),) for n in numbers]


@dataclass
class Report:
    """A model that was reported, and what is right.

    Args:
        kind: The model.
        args: The example inputs.
        calls: Inputs of calls after it; the program computes what eager mode does, unless it is `refused`.
        dynamic: Which dimensions vary.
        codes: What the check reports.
        fix: A part of the fix of the first finding.
        repaired: The model with the fix followed; it computes the same.
        refused: Calls for which the program raises an error.
        target: What it is checked for.
    """

    kind: type[nn.Module]
    args: tuple[Any, ...]
    calls: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    dynamic: Any = None
    codes: tuple[str, ...] = ()
    fix: str = ""
    repaired: type[nn.Module] | None = None
    refused: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    target: str = "cpu"


REPORTS: dict[str, Report] = {}


def report(thread, *args, **options):
    def register(kind):
        REPORTS[thread] = Report(kind, args, **options)
        return kind

    return register


# Models that export.


@report("pytorch/pytorch#112429", torch.arange(12.0), codes=("FE902", "FE905"))
class WritesView(nn.Module):
    def forward(self, x):
        x.view(3, 2, -1).add_(2)
        return x


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


@report("pytorch/pytorch#116544", Pair(X, X), calls=[(Pair(X[:2], X[:2]),)], dynamic="auto")
class TakesPair(nn.Module):
    def forward(self, pair):
        return pair.a + pair.b


@report("pytorch/pytorch#129927")
class TakesNothing(nn.Module):
    def forward(self):
        return torch.full((torch.full((), 11).item(),), 0)


@report("pytorch/pytorch#153063", X, calls=rows(5), dynamic="auto")
class MapsModule(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return torch.vmap(self.linear)(x)


@report(
    "pytorch/pytorch#147261",
    torch.randn(1, 2, 3000),
    calls=[(torch.randn(1, 2, 396 * 300),), (torch.randn(1, 2, 7 * 300),)],
    dynamic=["x.2=600.."],
)
class ScalesDown(nn.Module):
    def forward(self, x):
        return F.interpolate(x, scale_factor=1 / 300, mode="linear")


@report(
    "pytorch/pytorch#131897",
    *[torch.randn(1, 1, 8, 8)] * 2,
    calls=[tuple(torch.randn(2, 1, 1, 6, 10))],
    refused=[tuple(torch.randn(2, 1, 1, 7, 7))],
    dynamic="auto",
)
class ScalesDownAndUp(nn.Module):
    def forward(self, x, y):
        half = F.interpolate(x, scale_factor=0.5, mode="bilinear")
        return F.interpolate(half, scale_factor=2.0, mode="bilinear") + y


@report("pytorch/pytorch#158786", torch.tensor([[1, 4, 4]]), calls=[(torch.tensor([[2, 4, 8]]),)])
class PatchPositions(nn.Module):
    def forward(self, grid):
        found = []
        for t, h, w in grid:
            t, h, w = t.item(), h.item(), w.item()
            position = torch.arange(h).unsqueeze(1).expand(-1, w).reshape(h // 2, 2, w // 2, 2)
            found.append(position.permute(0, 2, 1, 3).flatten().repeat(t))
        return torch.cat(found)


@report(
    "pytorch/pytorch#119321",
    torch.arange(5.0),
    torch.tensor([1, 2, 0, 2]),
    calls=[(torch.arange(5.0), torch.tensor([2, 1, 1, 1]))],
)
class SlicesByLengths(nn.Module):
    def forward(self, values, lengths):
        start, sums = 0, []
        for n in lengths.tolist():
            sums.append(values[start : start + n].sum())
            start = start + n
        return torch.stack(sums)


@report("pytorch/pytorch#158366", X, X[0], calls=[(X + 1, X[1])])
class LoopsOverRows(nn.Module):
    def forward(self, x, first):
        def step(i, out, last):
            row = i.item()
            torch._check(row >= 0)
            torch._check(row < x.size(0))
            last = x[row] + last
            out = out.clone()
            out[row] = last
            return i + 1, out, last.clone()

        start = (torch.zeros((), dtype=torch.int64), torch.zeros_like(x), first)
        return torch.while_loop(lambda i, out, last: i < x.size(0), step, start)[1]


@report(
    "pytorch/pytorch#150539",
    torch.tensor(2),
    X,
    calls=[(torch.tensor(4), torch.randn(5, 4))],
    refused=[(torch.tensor(4), X)],
    dynamic=["y.0"],
)
class ChecksItem(nn.Module):
    def forward(self, n, y):
        size = n.item()
        torch._check(size >= 0)
        torch._check(size < y.shape[0])
        return y[:size]


@report(
    "pytorch/pytorch#146315",
    torch.randn(4),
    torch.randn(8),
    calls=[(torch.randn(3), torch.randn(6)), (torch.randn(3), torch.randn(5))],
    dynamic="auto",
)
class AddsEverySecond(nn.Module):
    def forward(self, x, y):
        return x + y[::2]


@report("pytorch/pytorch#159623", X, calls=[(X,), (X + 1,)])
class HalvesParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        with torch.no_grad():
            self.scale.div_(2)
        return x + self.scale


@report("pytorch/pytorch#167329", X, calls=[(X + 1,)])
class HasHooks(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        self.register_forward_hook(lambda module, args, result: result + 1)

    def forward(self, x):
        return x.sin()


@report("pytorch/pytorch#123499", X.abs() + 1, calls=[(X.abs() + 2,)], refused=[(X - 9,)])
class ValidatesInput(nn.Module):
    def forward(self, x):
        if not torch.all(x > 0):
            raise RuntimeError("not positive")
        try:
            return x.reshape(5)
        except RuntimeError:
            return x * x


@report(
    "pytorch/pytorch#138852",
    torch.randn(1, 1, 8, 9),
    calls=[(torch.randn(1, 1, 8, n),) for n in (6, 7, 10, 11, 13)],
    dynamic=["x.3=4.."],
)
class RoundsSizes(nn.Module):
    def forward(self, x):
        size = round(x.shape[-2] / 1), round(x.shape[-1] / 2)
        return F.interpolate(x, size=size, mode="bilinear") * round(x.shape[-1] / 4)


class Color(enum.Enum):
    RED = 1
    GREEN = 2


@report(
    "pytorch/pytorch#153061",
    X,
    Color.RED,
    codes=("FE406",),
    fix="the `.value` of an enum",
)
class AddsColor(nn.Module):
    def forward(self, x, color):
        return x + color.value


@report(
    "pytorch/pytorch#147213",
    {"a": X},
    codes=("FE903",),
    fix="change a copy: `y = {**y, ...}`",
)
class FillsArgument(nn.Module):
    def forward(self, found):
        found["b"] = found["a"].sin()
        return found["b"] + 1


# Models with a fix that works.


class Pads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=self.is_nested)
        self.eval()


class PadsNothing(Pads):
    is_nested = False

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding).masked_fill(padding[..., None], 0)


@report(
    "pytorch/pytorch#97111",
    torch.randn(2, 5, 8),
    SEEN,
    codes=("FE913",),
    fix="`enable_nested_tensor=False`",
    repaired=PadsNothing,
)
class PadsWithZeros(Pads):
    is_nested = True

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = nn.LSTM(4, 3, batch_first=True)


class MasksOutput(Recurrent):
    def forward(self, x, lengths):
        y, _ = self.rnn(x)
        is_kept = torch.arange(y.shape[1], device=y.device) < lengths[:, None]
        return torch.where(is_kept[..., None], y, 0)


@report(
    "pytorch/pytorch#171978",
    torch.randn(3, 5, 4),
    torch.tensor([5, 3, 2]),
    codes=("FE203",),
    fix="pass the padded tensor to the RNN",
    repaired=MasksOutput,
)
class PacksSequence(Recurrent):
    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 2)

    def forward(self, x):
        return self.inner(x)


@report(
    "pytorch/pytorch#86261",
    X,
    codes=("FE202",),
    fix="use the original nn.Module instead of the scripted `self.inner`",
    repaired=Plain,
    target="H100",
)
class Scripted(Plain):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(self.inner)


class KeepsUnique(nn.Module):
    def forward(self, x):
        return torch.unique(x)


@report(
    "pytorch/pytorch#126685",
    torch.tensor([3, 1, 3]),
    codes=("FE301",),
    fix="keep the tensor `torch.unique(x)`, without `.tolist()`",
    repaired=KeepsUnique,
)
class ListsUnique(nn.Module):
    def forward(self, x):
        return torch.unique(x).tolist()


class BroadcastsMask(nn.Module):
    def forward(self, mask):
        q = torch.arange(4, device=mask.device)
        return (q[None, :] <= q[:, None]) & mask[q[None, :]]


@report(
    "huggingface/transformers#42721",
    torch.tensor([True, True, False, False]),
    codes=("FE202",),
    fix="`mask[rows[:, None], columns]`",
)
class MapsMask(nn.Module):
    def forward(self, mask):
        def attends(q, k):
            return (k <= q) & mask[k]

        q = torch.arange(4, device=mask.device)
        return torch.vmap(torch.vmap(attends, (None, 0)), (0, None))(q, q)


class CountsSteps(nn.Module):
    def forward(self, mask):
        step = torch.tensor(1.0) / mask.sum()
        n = ((torch.tensor(0.99) - torch.tensor(0.0)) / step).ceil().to(torch.int64).item()
        torch._check(n >= 0)
        return torch.tensor(0.0) + step * torch.arange(n, device=step.device)


@report(
    "pytorch/pytorch#170548",
    torch.tensor([True, False, True, True]),
    codes=("FE201",),
    fix="`start + step * torch.arange(n, device=step.device)`",
    repaired=CountsSteps,
)
class StepsByData(nn.Module):
    def forward(self, mask):
        step = torch.tensor(1.0) / mask.sum()
        return torch.arange(torch.tensor(0.0), torch.tensor(0.99), step)


class AssertsInProgram(nn.Module):
    def forward(self, x):
        torch._assert_async(x.sum() > -9, "too small")
        return x * 2


@report(
    "pytorch/pytorch#134533",
    X,
    codes=("FE201",),
    fix="`torch._assert_async(x.sum() > -9, 'too small')`",
    repaired=AssertsInProgram,
)
class AssertsTensor(nn.Module):
    def forward(self, x):
        torch._assert(x.sum() > -9, "too small")
        return x * 2


@report(
    "pytorch/pytorch#134663",
    torch.randn(7, 4),
    calls=[(torch.randn(7, 4),)],
    dynamic=["x.0=2.."],
    codes=("FE302",),
    fix="--input 'x=float32[6,4]' --dynamic x.0=6..",
)
class CutsInThree(nn.Module):
    def forward(self, x):
        return [*x.chunk(3)]


class CopiesInput(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.clone(), lambda x: x * 2, (x,))


@report(
    "pytorch/pytorch#153832",
    X,
    codes=("FE202",),
    fix="`x.clone()` instead of `x`",
    repaired=CopiesInput,
)
class ReturnsInput(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x, lambda x: x * 2, (x,))


class MakesBefore(nn.Module):
    def forward(self, x):
        one = torch.tensor(1.0)
        return torch.cond(x.sum() > 0, lambda x: x + one, lambda x: x * 2, (x,))


@report(
    "pytorch/pytorch#180354",
    X,
    codes=("FE406",),
    fix="create the tensor before the call of `torch.cond`",
    repaired=MakesBefore,
)
class MakesInBranch(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + torch.tensor(1.0), lambda x: x * 2, (x,))


@report(
    "pytorch/pytorch#137111",
    X,
    codes=("FE102",),
    fix="quantize with torchao",
)
class QuantizesDynamically(nn.Module):
    def __init__(self):
        super().__init__()
        model = nn.Sequential(nn.Linear(4, 4))
        self.inner = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})

    def forward(self, x):
        return self.inner(x)


class PadsTensors(nn.Module):
    def forward(self, x):
        return pad_sequence([x[:2], x], batch_first=True)


@report(
    "pytorch/pytorch#149605",
    X,
    codes=("FE202",),
    fix="`torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)`",
    repaired=PadsTensors,
)
class NestsTensors(nn.Module):
    def forward(self, x):
        return torch.nested.nested_tensor([x[:2], x], layout=torch.jagged).to_padded_tensor(0.0)


@report(
    "pytorch/pytorch#147326",
    X,
    nn.Identity(),
    codes=("FE406",),
    fix="make the module a submodule",
)
class TakesModule(nn.Module):
    def forward(self, x, module):
        return module(x) * 2


class TakesRoot(nn.Module):
    def forward(self, x):
        return x / ((x.shape[0] / 2) ** 0.5)


@report(
    "pytorch/TensorRT#3973",
    X,
    dynamic=["x.0"],
    codes=("FE203",),
    fix="`((x.shape[0] / 2) ** 0.5)`",
    repaired=TakesRoot,
)
class TakesRootInNumpy(nn.Module):
    def forward(self, x):
        return x / np.sqrt(x.shape[0] / 2)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def hit(self, mask):
        return [[i] for i in range(mask.shape[0])]

    def forward(self, x):
        out = torch.zeros_like(x)
        mask = F.one_hot(x.argmax(-1) % 3, 3).T
        for expert in self.hit(mask):
            (rows,) = torch.where(mask[expert[0]])
            out.index_add_(0, rows, self.experts[expert[0]](x[rows]))
        return out


@report(
    "huggingface/transformers#46929",
    X,
    codes=("FE301", "FE203"),
    fix="loop over all possible indices",
    repaired=Experts,
)
class VisitsHitExperts(Experts):
    def forward(self, x):
        out = torch.zeros_like(x)
        mask = F.one_hot(x.argmax(-1) % 3, 3).T
        expert_hit = mask.sum(-1).nonzero()
        for expert in expert_hit:
            (rows,) = torch.where(mask[expert[0]])
            out.index_add_(0, rows, self.experts[expert[0]](x[rows]))
        return out


@pytest.mark.parametrize("thread", REPORTS)
def test_findings_and_results_of_reported_models(thread):
    found = REPORTS[thread]

    seen = fe.check(lambda: (found.kind(), found.args), target=found.target, dynamic_shapes=found.dynamic)

    assert tuple(each.code for each in seen.diagnostics) == found.codes, str(seen)
    assert found.fix in "".join(each.fix.message for each in seen.diagnostics[:1] if each.fix), str(seen)
    if any(each.severity == "error" for each in seen.diagnostics):
        return
    with torch.no_grad():
        eager = found.kind()
        bound = fe.bind(seen.verdicts[0].program, dict(found.kind().state_dict())).module()
        for inputs in [found.args, *found.calls] if found.repaired is None else []:
            torch.testing.assert_close(bound(*fresh(inputs)), eager(*fresh(inputs)))
        for inputs in found.refused:
            with pytest.raises((RuntimeError, AssertionError)):
                bound(*inputs)


@pytest.mark.parametrize("thread", [name for name, each in REPORTS.items() if each.repaired])
def test_a_repaired_model_is_clean_and_computes_the_same(thread):
    found = REPORTS[thread]
    assert found.repaired is not None

    seen = fe.check(lambda: (found.repaired(), found.args), dynamic_shapes=found.dynamic)

    assert seen.is_clean, str(seen)
    bound = fe.bind(seen.verdicts[0].program, dict(found.repaired().state_dict())).module()
    with torch.no_grad():
        expected = torch.as_tensor(found.kind()(*fresh(found.args)))
        torch.testing.assert_close(bound(*fresh(found.args)), expected)


def test_guard_rejects_a_different_enum_member():
    program = fe.export(AddsColor, (X, Color.RED)).module()

    torch.testing.assert_close(program(X, Color.RED), X + 1)
    with pytest.raises(AssertionError, match=r"color\._name_ == 'RED'"):
        program(X, Color.GREEN)


class Named(enum.Enum):
    """Its members have one text, which is that of a member of `Color`."""

    RED = 1
    GREEN = 2

    def __str__(self):
        return "Color.RED"


class AsksForColor(nn.Module):
    def forward(self, x, color):
        return x + 1 if color in (Color.RED, Named.RED) else x - 1


@pytest.mark.parametrize(
    ("example", "other"),
    [(Color.RED, "Color.RED"), (Color.RED, 1), (Color.RED, Named.GREEN), (Named.RED, Named.GREEN)],
)
def test_guard_distinguishes_enum_members_from_equal_values(example, other):
    program = fe.export(AsksForColor, (X, example)).module()

    torch.testing.assert_close(program(X, example), X + 1)
    with pytest.raises(AssertionError, match="Guard failed"):
        program(X, other)


def fresh(inputs):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, inputs)
