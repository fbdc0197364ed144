"""State in Python: an error if the next call in eager mode returns something else, otherwise a warning."""

from __future__ import annotations

import contextvars
import copy
import functools
import inspect
import itertools
import json
import os
import random
import time

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fakexport as fe
from fakexport.exporting.capture.capture import capture

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attribute")


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x * self.steps


class FirstCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.is_first = True
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        if self.is_first:
            self.is_first = False
            return x * self.scale * 2
        return x * self.scale


class ReturnsItsList(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x + 1)
        return self.seen


class DictOfResults(nn.Module):
    def __init__(self):
        super().__init__()
        self.results = {}

    def forward(self, x):
        y = self.results.get("y", x)
        self.results["y"] = y.sin()
        return y


class LazyBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("t", None)

    def forward(self, x):
        self.t = x.sum(0) if self.t is None else self.t + 1
        return x * self.t


class CachesItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = None

    def forward(self, x):
        if self.mean is None:
            self.mean = x.mean()
        return x - self.mean


class CachesADraw(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise = None

    def forward(self, x):
        if self.noise is None:
            self.noise = torch.rand(4)
        return x * self.noise


class ThirdCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return x.sin() if self.steps > 2 else x.cos()


class InASubmodule(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), Counts()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class RoundsItsCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        self.table = torch.arange(4.0) / 3 if self.table is None else self.table.half().to(x.dtype)
        return x * self.table


WRONG = [
    RoundsItsCache,
    Counts, FirstCall, ReturnsItsList, DictOfResults, LazyBuffer, CachesItsInput, CachesADraw,
    ThirdCall, InASubmodule,
]  # fmt: skip


class LastResult(nn.Module):
    """Remembers for its caller, and reads nothing of it."""

    def __init__(self):
        super().__init__()
        self.calls, self.shapes = 0, []
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        self.calls += 1
        self.shapes.append(tuple(x.shape))
        self.last = self.linear(x)
        return self.last.relu()


class CachesAWeight(nn.Module):
    """A cache of what the weights alone decide."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.cache = None

    def forward(self, x):
        if self.cache is None:
            self.cache = F.normalize(self.weight, dim=0).t()
        return x @ self.cache


class CachesByLength(nn.Module):
    """Positions in a dict, as libraries keep them."""

    def __init__(self):
        super().__init__()
        self.positions = {}

    def forward(self, x):
        n = x.shape[0]
        if n not in self.positions:
            self.positions[n] = torch.arange(n, dtype=torch.float32)[:, None]
        return F.dropout(x + self.positions[n], 0.5, training=True)


class EmptiesItsList(nn.Module):
    def __init__(self):
        super().__init__()
        self.results = []

    def forward(self, x):
        self.results.clear()
        for number in range(3):
            self.results.append(x * number)
        return torch.cat(self.results)


class CountsButBuffersDecide(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.steps = self.steps + 1
        return x * self.steps


class MovesItsCache(nn.Module):
    """Like the frequencies of longrope in transformers, which are of no device until the first call."""

    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        table = torch.arange(4.0) / 3 if self.table is None else self.table
        self.table = table.to(x.device).contiguous()
        return x * self.table


class KeepsSelectedRows(nn.Module):
    """Strides of an unknown number of rows cannot be compared by a guard."""

    def forward(self, x):
        rows = (x > 0).nonzero()
        rows = torch.cat([rows, rows[:, :1]], 1).contiguous().t().contiguous()
        self.seen = rows
        return rows * 2


RIGHT = [
    KeepsSelectedRows,
    MovesItsCache,
    LastResult,
    CachesAWeight,
    CachesByLength,
    EmptiesItsList,
    CountsButBuffersDecide,
]


def called(function, times=4):
    """Return copies of what several calls with different inputs return, or the error of one."""
    results = []
    for number in range(times):
        torch.manual_seed(number)
        x = torch.arange(12.0).reshape(3, 4) + number
        try:
            results.append(copy.deepcopy(function(x)))
        except RuntimeError as error:
            results.append(str(error))
    return results


def is_equal(one, other):
    try:
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    except (AssertionError, TypeError):
        return False
    return True


@pytest.mark.parametrize("kind", WRONG)
def test_state_that_the_next_call_reads_is_an_error(kind):
    torch.manual_seed(0)
    report = fe.check(kind, (torch.ones(3, 4),))

    errors = [found for found in report.diagnostics if found.severity == "error"]
    assert [found.code for found in errors] == ["FE912"]
    assert "next call" in str(errors[0].notes)


@pytest.mark.parametrize("kind", RIGHT)
def test_state_that_no_call_reads_is_a_warning_and_the_program_is_right(kind):
    torch.manual_seed(0)
    report = fe.check(kind, (torch.ones(3, 4),))
    model = kind().eval()
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    assert report.verdicts[0].is_exportable, str(report)
    assert "FE903" in {found.code for found in report.diagnostics}
    program = fe.bind(fe.export(kind, (torch.ones(3, 4),)), weights).module()
    with torch.no_grad():
        assert is_equal(called(program), called(model))


class OfItsDefault(nn.Module):
    def forward(self, x, seen=[]):  # noqa: B006
        seen.append(x)
        return x * len(seen)  # here


class OfAClosure(nn.Module):
    def __init__(self):
        super().__init__()
        steps = itertools.count()
        self.next = lambda: next(steps)

    def forward(self, x):
        return x * self.next()  # here


class OfItsOwnGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.drawn = random.Random(0)

    def forward(self, x):
        return x * self.drawn.random()  # here


class OfAGeneratorOfNumpy(nn.Module):
    def __init__(self):
        super().__init__()
        self.drawn = numpy.random.default_rng(0)

    def forward(self, x):
        return x + torch.tensor(self.drawn.random(4), dtype=x.dtype)  # here


class OfAnArray(nn.Module):
    def __init__(self):
        super().__init__()
        self.array = numpy.ones(4, dtype="float32")

    def forward(self, x):
        self.array += 1
        return x + torch.from_numpy(self.array)  # here


class Held:
    __slots__ = ("steps",)


class OfSlots(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = Held()
        self.held.steps = 0

    def forward(self, x):
        self.held.steps += 1
        return x * self.held.steps  # here


class OfBytes(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = bytearray(b"\x01")

    def forward(self, x):
        self.held[0] += 1
        return x * self.held[0]  # here


class OfTheEnvironment(nn.Module):
    def forward(self, x):
        steps = os.environ["STEPS"] = os.environ.get("STEPS", "") + "."
        return x * len(steps)  # here


class OfAContext(nn.Module):
    steps = contextvars.ContextVar("steps", default=1)

    def forward(self, x):
        self.steps.set(self.steps.get() + 1)
        return x * self.steps.get()  # here


class OfAClock(nn.Module):
    def forward(self, x):
        return x + time.perf_counter_ns() % 1_000_003  # here


class OfACachedTensor(nn.Module):
    @functools.cache  # noqa: B019
    def table(self, length):
        return torch.arange(float(length))

    def forward(self, x):
        return x + self.table(x.shape[1]).mul_(2)


UNSEEN = [
    OfItsDefault,
    OfAClosure,
    OfItsOwnGenerator,
    OfAGeneratorOfNumpy,
    OfAnArray,
    OfSlots,
    OfBytes,
    OfTheEnvironment,
    OfAContext,
    OfAClock,
    OfACachedTensor,
]


@pytest.mark.parametrize("kind", UNSEEN, ids=lambda kind: kind.__name__)
def test_state_that_is_nowhere_in_the_model_is_an_error_at_the_line_that_uses_it(kind):
    report = fe.check(kind, (torch.ones(3, 4),))

    errors = [found for found in report.diagnostics if found.severity == "error"]
    assert [found.code for found in errors] == ["FE912"], str(report)
    lines, first = inspect.getsourcelines(kind)
    marked = [first + at for at, line in enumerate(lines) if "# here" in line]
    assert not marked or [errors[0].primary.span.line] == marked


class RunsOnce(nn.Module):
    def forward(self, x, seen=[]):  # noqa: B006
        seen.append(len(seen))
        if len(seen) > 1:
            raise ValueError("it ran already")  # here
        return x


class RunsOnceAndCounts(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, x):
        self.steps += 1  # here
        if self.steps == 2:
            raise ValueError("it ran already")
        return x


@pytest.mark.parametrize("kind", [RunsOnce, RunsOnceAndCounts], ids=lambda kind: kind.__name__)
def test_a_next_call_that_raises_is_an_error_with_what_it_raises(kind):
    report = fe.check(kind, (torch.ones(3, 4),))

    found = next(found for found in report.diagnostics if found.severity == "error")
    lines, first = inspect.getsourcelines(kind)
    assert found.code == "FE912"
    assert "raises ValueError: it ran already" in found.notes[0]
    assert "# here" in lines[found.primary.span.line - first]


def test_a_rescaling_of_weights_in_the_first_call_of_a_library_is_an_error(tmp_path):
    pytest.importorskip("transformers")
    config = {"model_type": "rwkv", "architectures": ["RwkvForCausalLM"], "vocab_size": 40, "hidden_size": 32}
    config |= {"num_hidden_layers": 2, "context_length": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))

    report = fe.check(f"hf:{tmp_path / 'config.json'}", target="H100")

    (found,) = report.diagnostics
    assert (found.code, found.severity) == ("FE912", "error")
    assert (
        "changes rwkv.layers_are_rescaled, and its next call computes something different" in found.notes[0]
    )


class DrawsWithTorch(nn.Module):
    def forward(self, x):
        return F.dropout(x + torch.rand(4), 0.5)


class WritesItsBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(4))

    def forward(self, x):
        self.steps.add_(1)
        return x + self.steps


class Branches(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) + 1


class Maps(nn.Module):
    def forward(self, x):
        return torch._higher_order_ops.map(lambda row, other: row.sin() + other, x, x.sum(0))


class MakesTheSame(nn.Module):
    def forward(self, x, *, scale=None):
        table = torch.from_numpy(numpy.arange(4, dtype="float32"))
        mask = torch.ones(4, dtype=torch.bool)
        return {"sum": (x * table).sum(), "kept": x[:, mask], "scale": scale}


class CutsByData(nn.Module):
    """Its numbers are symbols, which each call has of its own; sums are sorted by their names."""

    def forward(self, x):
        counts = (x[0] * 0).int().tolist()
        total = sum(counts) + 1
        torch._check(total >= 0)
        torch._check(total <= 3)
        return [x[:total] + count for count in counts]


class CountsRows(nn.Module):
    """torch keeps the number of rows with the mask: both calls have one symbol."""

    def forward(self, x):
        rows = x[x[:, 0] > 0]
        return torch.cat([rows, x[-1].expand(3 - rows.shape[0], 12)])


class CountsRowsOfItsMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([True, False, True]))

    def forward(self, x):
        rows = x[self.mask]
        return torch.cat([rows, x[-1].expand(3 - rows.shape[0], 12)])


class ScalesByItsSum(nn.Module):
    """A float of data is another symbol in each call."""

    def forward(self, x):
        return x * (x.sum().item() + 0.5)


ALIKE = [
    ScalesByItsSum,
    DrawsWithTorch,
    WritesItsBuffer,
    MakesTheSame,
    Branches,
    Maps,
    CutsByData,
    CountsRows,
    CountsRowsOfItsMask,
]


@pytest.mark.parametrize("kind", ALIKE, ids=lambda kind: kind.__name__)
def test_calls_that_are_alike_are_no_error(kind):
    width = 4 if kind in (DrawsWithTorch, WritesItsBuffer, MakesTheSame) else 12
    report = fe.check(kind, (torch.ones(3, width),))

    assert report.verdicts[0].is_exportable, str(report)


def test_the_model_holds_afterwards_what_it_held():
    model = LastResult()

    fe.export(model, (torch.ones(3, 4),))

    assert (model.calls, model.shapes, hasattr(model, "last")) == (0, [], False)


def test_a_value_from_outside_of_the_model_should_be_an_input():
    class Clock(nn.Module):
        def forward(self, x):
            return x * time.time()

    (found,) = fe.check(lambda: (Clock(), (torch.ones(2, 4),))).diagnostics

    assert (found.code, found.labels[0].message) == ("FE912", "differs in the next call")
    assert "such as a time or a counter, as an input of `forward`" in found.fix.message


def test_the_repeated_calls_leave_no_marks_on_the_inputs():
    """torch marks dynamic dimensions during a trace. A later static trace would read the marks."""

    class Adds(nn.Module):
        def forward(self, x):
            return x + 1

    x = torch.ones(4, 6)
    before = vars(x).copy()

    assert capture(Adds(), (x,), dynamic=({0: torch.export.Dim.AUTO},)).program is not None

    assert vars(x) == before
