"""Models drawn at random, whose blocks differ at most in what they see of a cache: the same with reuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers.cache_utils")

from fakexport.capture.capture import Captured, capture
from fakexport.capture.reuse_verification import check_same
from fakexport.devices import emulate
from tests.unit.capture.drawn_caches import CHANGES, KINDS, STEPS, CachePlan, built, example
from tests.unit.capture.test_reuse_of_drawn_models import drawn

AUTO = torch.export.Dim.AUTO


@st.composite
def plans(draw: st.DrawFn) -> CachePlan:
    count = draw(st.integers(7, 10))
    return CachePlan(
        count,
        draw(st.sampled_from(sorted(KINDS))),
        tuple(draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3))),
        draw(st.sampled_from(sorted(CHANGES))),
        draw(st.frozensets(st.integers(1, count - 1), min_size=1, max_size=3)),
    )


def captured(plan: CachePlan, *, is_dynamic: bool, reuse: bool) -> Captured:
    inputs = example(plan)
    dynamic = ({}, [{2: AUTO} for _ in inputs[1]]) if is_dynamic and plan.kind != "static" else None
    with emulate("cpu"), torch.no_grad():
        return capture(built(plan), inputs, dynamic=dynamic, reuse=reuse)


def check(plan: CachePlan, *, is_dynamic: bool) -> None:
    reused = captured(plan, is_dynamic=is_dynamic, reuse=True)

    check_same(reused, captured(plan, is_dynamic=is_dynamic, reuse=False))

    if reused.program is not None:
        check_values(plan, reused.program.module())


def check_values(plan: CachePlan, program: Any) -> None:
    """The program gives what eager gives, where eager takes the inputs as well."""
    with torch.no_grad():
        try:
            expected: Any = built(plan)(*example(plan))
        except RuntimeError:
            return
        found = program(*example(plan))
    for one, other in zip((found[0], *found[1]), (expected[0], *expected[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.slow
@drawn(8)
@given(plan=plans(), is_dynamic=st.booleans())
def test_a_drawn_model_with_a_cache_is_the_same_program(plan: CachePlan, is_dynamic: bool) -> None:
    check(plan, is_dynamic=is_dynamic)


@pytest.mark.exhaustive
@drawn(300)
@given(plan=plans(), is_dynamic=st.booleans())
def test_many_drawn_models_with_caches_are_the_same_programs(plan: CachePlan, is_dynamic: bool) -> None:
    check(plan, is_dynamic=is_dynamic)


@pytest.mark.parametrize(
    "kind", ["grows", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("static", "window"))]
)
def test_blocks_of_drawn_models_with_a_cache_are_reused(kind: str, reports: Any) -> None:
    check(CachePlan(10, kind, ("own", "crossed"), "nothing", frozenset({1})), is_dynamic=False)

    assert reports[0].replayed >= 1, reports[0].report()


@pytest.mark.exhaustive
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_cache_is_seen(change: str) -> None:
    """With steps that read what changes."""
    steps = ("own", "crossed", "kind", "length")
    check(CachePlan(9, "grows", steps, change, frozenset({5})), is_dynamic=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
def test_each_step_with_a_cache_is_done_again(step: str, kind: str) -> None:
    check(CachePlan(9, kind, ("own", step), "flag of the first", frozenset({5})), is_dynamic=False)
