"""What forward changes outside of the modules, and what it asks for that a trace answers otherwise."""

from __future__ import annotations

import itertools
import linecache
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict, deque

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import fakexport as fe

CALLS = 0
SEEN = {"calls": [0]}
LAST = None
UNTOUCHED = [1, 2]


class Part(nn.Module):
    calls = 0
    seen: list[int] = []  # noqa: RUF012 # One for all, as in the models that this is about.

    def forward(self, x):
        return x


class Counts(Part):
    def forward(self, x):
        global CALLS
        CALLS += 1
        return x * CALLS


class CountsInAList(Part):
    def forward(self, x):
        SEEN["calls"].append(1)
        return x * len(SEEN["calls"])


class Remembers(Part):
    def forward(self, x):
        global LAST
        LAST = x
        return x + UNTOUCHED[0]


class Calls:
    def __init__(self):
        self.calls = 0


COUNTER = Calls()
ONE_BY_ONE = iter(range(1, 1000))


def counting():
    calls = 0

    def count():
        nonlocal calls
        calls += 1
        return calls

    return count


def generated():
    yield from itertools.count(1)


COUNT = counting()


class CountsInAnObject(Part):
    def forward(self, x):
        COUNTER.calls += 1
        return x * COUNTER.calls


class CountsInAClosure(Part):
    def forward(self, x):
        return x * COUNT()


class TakesTheNext(Part):
    def forward(self, x):
        return x * next(ONE_BY_ONE)


class HoldsAState(Part):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def forward(self, x):
        return x * (self.state() if callable(self.state) else next(self.state))


class HoldsACount(Part):
    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def forward(self, x):
        if isinstance(self.counts, dict):
            self.counts["calls"] = self.counts.get("calls", 0) + 1
        else:
            self.counts.append(1)
        return x * len(self.counts)


@pytest.mark.parametrize("kind", [dict, OrderedDict, lambda: defaultdict(int), Counter, list, deque])
def test_the_items_of_a_container_are_seen(kind):
    (found,) = found_in(HoldsACount(kind()), torch.ones(2))

    is_longer = kind in (list, deque)  # A dict has one item after each call.
    assert found.code == ("FE912" if is_longer else "FE903")
    assert "counts" in found.notes[0]
    assert line_of(found) == "self.counts"


def test_each_of_many_generators_has_a_state_of_its_own():
    class TakesOne(Part):
        def __init__(self):
            super().__init__()
            self.states = [generated() for _ in range(50)]

        def forward(self, x):
            return x * next(self.states[7])

    for _ in range(5):
        (found,) = found_in(TakesOne(), torch.ones(2))
        assert found.code == "FE912"


@pytest.mark.parametrize("state", [counting, generated, lambda: iter(range(1, 1000)), itertools.count])
def test_the_state_of_an_attribute_is_seen(state):
    (found,) = found_in(HoldsAState(state()), torch.ones(2))

    assert (found.code, found.notes) == ("FE912", (changes("state"),))


class CountsInItsClass(Part):
    def forward(self, x):
        type(self).calls += 1
        return x * self.calls


class ListsInItsClass(Part):
    def forward(self, x):
        self.seen.append(1)
        return x * len(self.seen)


def changes(name):
    return (
        f"forward changes {name}, and its next call computes something different, but the program repeats "
        "the first call"
    )


def found_in(model, *inputs, **options):
    return fe.check(model, inputs, **options).diagnostics


def line_of(diagnostic):
    span = diagnostic.primary.span
    return linecache.getline(span.path, span.line)[
        span.column - 1 : (span.end_column or 0) - 1 or None
    ].strip()


@pytest.mark.parametrize(
    ("kind", "name", "place"),
    [
        (Counts, "CALLS", "CALLS"),
        (CountsInAList, "SEEN", "SEEN"),
        (Remembers, "LAST", "LAST"),
        (CountsInAnObject, "COUNTER", "COUNTER"),
        (CountsInAClosure, "COUNT", "x * COUNT()"),
        (TakesTheNext, "ONE_BY_ONE", "x * next(ONE_BY_ONE)"),
        (CountsInItsClass, "CountsInItsClass.calls", "type(self).calls"),
        (ListsInItsClass, "Part.seen", "self.seen"),
    ],
)
def test_a_variable_that_changes_is_shown_where_it_does(kind, name, place):
    (found,) = found_in(kind(), torch.ones(2))

    is_read = kind is not Remembers
    assert found.code == ("FE912" if is_read else "FE903")
    assert found.notes == (changes(name) if is_read else f"`{name}` was changed while `forward` ran",)
    assert line_of(found) == place


class Appends(nn.Module):
    def forward(self, x, cache):
        cache.append(x * 2)
        return x


class Replaces(nn.Module):
    def forward(self, x, *, cache):
        cache[0] = x * 2
        return x + cache[0]


class Pops(nn.Module):
    def forward(self, x, cache):
        return x + cache["inner"].pop("y")


class AddsInside(nn.Module):
    def forward(self, x, **named):
        named["cache"]["inner"]["z"] = x
        return x


@pytest.mark.parametrize(
    ("kind", "cache", "place"),
    [
        (Appends, [torch.ones(2)], "cache"),
        (Replaces, [torch.ones(2)], "cache"),
        (Pops, {"inner": {"y": torch.ones(2)}}, None),
        (AddsInside, {"inner": {"y": torch.ones(2)}}, None),
    ],
)
def test_a_container_of_the_caller_that_changes_is_reported(kind, cache, place):
    (found,) = fe.check(kind(), (torch.ones(2),), {"cache": cache}).diagnostics

    assert (found.code, found.notes) == ("FE903", ("`cache` was changed while `forward` ran",))
    assert place is None or line_of(found) == place


def test_a_container_that_is_only_read_is_none():
    class Reads(nn.Module):
        def forward(self, x, cache, *others):
            cache = {**cache, "z": x}
            return x + cache.pop("z") + cache["y"][0] + others[0][0]

    given = (torch.ones(2), {"y": [torch.ones(2)]}, (torch.ones(2),))
    assert fe.check(Reads(), given).diagnostics == ()


def test_variables_that_are_only_read_are_none():
    class Reads(Part):
        def forward(self, x):
            return x * UNTOUCHED[0] + len(self.seen) + self.calls

    assert found_in(Reads(), torch.ones(2)) == ()


class Attends(nn.Module):
    def forward(self, x):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(x, x, x)


class Sets(nn.Module):
    def forward(self, x):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32
        torch.set_float32_matmul_precision(torch.get_float32_matmul_precision())
        return x @ x


@pytest.mark.parametrize(
    ("model", "chosen"),
    [
        (Attends(), ["sdpa_kernel"]),
        (Sets(), ["torch.backends.cuda", "set_float32_matmul_precision"]),
    ],
)
def test_a_choice_of_kernels_is_no_part_of_the_program(model, chosen):
    found = found_in(model, torch.ones(1, 2, 8, 8))

    assert [each.code for each in found] == ["FE910"] * len(chosen)
    assert [each.notes[0].split("`")[1] for each in found] == chosen


def test_what_torch_chooses_for_itself_is_none():
    class Branches(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    assert found_in(Branches(), torch.ones(2)) == ()


class Looks(nn.Module):
    def __init__(self, text):
        super().__init__()
        self.text = text

    def forward(self, x):
        return x * {"3": 2, "torch.Size([3])": 4}.get(self.text(x), 5)


def formatted(x):
    return f"{x.argmax().item()}"


TEXTS = {
    "a number of data": lambda x: str(x.argmax().item()),
    "in a format": formatted,
    "a condition": lambda x: repr(x.sum().item() > 1),
    "a tensor": lambda x: f"{x}",
    "a size": lambda x: str(x.shape[0]),
    "a shape": lambda x: f"{x.shape}",
    "an old format": lambda x: "%s" % x.shape[0],  # noqa: UP031
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_text_of_what_the_trace_does_not_know_is_a_warning(text):
    found = found_in(Looks(text), torch.ones(3), dynamic_shapes=["x.0"])

    assert [(each.code, each.severity) for each in found] == [("FE911", "warning")]


@pytest.mark.parametrize("name", ["a size", "a shape", "an old format"])
def test_text_of_a_known_size_is_none(name):
    assert found_in(Looks(TEXTS[name]), torch.ones(3)) == ()


class Tells(nn.Module):
    def forward(self, x):
        if x.shape[0] == 100:
            raise ValueError(f"too many rows: {x.shape}")
        assert x.dim() == 1, f"bad shape {x.shape}"
        warnings.warn(f"{x.shape[0]} rows", stacklevel=2)
        sys.stderr.write(f"{x.shape}")
        torch._check(x.shape[0] > 1, lambda: f"{x.shape}")
        return x


@pytest.mark.filterwarnings("ignore:.* rows")
def test_text_that_is_only_told_is_none():
    assert found_in(Tells(), torch.ones(3), dynamic_shapes=["x.0=2..50"]) == ()
