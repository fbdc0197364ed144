"""Models drawn at random are the same programs with the memo of operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakexport.capture.capture import Captured, capture
from fakexport.devices import emulate
from tests.identity import first_difference
from tests.unit.capture.drawn_blocks import CALLS, CHANGES, STEPS, WIDTH, Plan, built

AUTO = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
# Between the shapes of the example: other sizes for other numbers of rows.
EXAMPLE, OTHER = (2, 5, WIDTH), (3, 7, WIDTH)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(7, 10))
    places = st.frozensets(st.integers(0, count - 1), min_size=1, max_size=3)
    return Plan(
        count,
        tuple(draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4))),
        draw(st.sampled_from(sorted(CHANGES))),
        draw(st.one_of(places, st.just(frozenset({count - 2})))),
        draw(st.one_of(st.just("plain"), st.sampled_from(sorted(CALLS)))),
    )


def example(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def captured(plan: Plan, switch: str, *, is_dynamic: bool) -> Captured:
    """A model of its own for each capture: a first call may change a model."""
    with pytest.MonkeyPatch.context() as patch, emulate("cpu"):
        patch.setenv("FAKEXPORT_SPEED", switch)
        return capture(built(plan), (example(EXAMPLE),), dynamic=AUTO if is_dynamic else None)


def check(plan: Plan, *, is_dynamic: bool) -> None:
    quick, stock = (captured(plan, switch, is_dynamic=is_dynamic) for switch in ("1", "0"))

    if quick.program is None or stock.program is None:
        assert str(quick.failure) == str(stock.failure)
        return
    assert first_difference(quick.program, stock.program) is None
    assert (quick.read_constants, quick.recovered, quick.effects) == (
        stock.read_constants,
        stock.recovered,
        stock.effects,
    )
    if "dropout" not in plan.steps and "training" not in plan.change:
        check_values(plan, quick.program.module(), example(OTHER if is_dynamic else EXAMPLE) * 0.5)


def check_values(plan: Plan, program: Any, inputs: torch.Tensor) -> None:
    """The program gives what eager gives, where eager takes the inputs as well."""
    try:
        expected = built(plan)(inputs.clone())
    except (RuntimeError, IndexError):
        return
    got = program(inputs.clone())
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3, equal_nan=True)


def drawn(count: int) -> Any:
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@pytest.mark.slow
@drawn(12)
@given(plan=plans(), is_dynamic=st.booleans())
def test_a_drawn_model_is_the_same_program(plan: Plan, is_dynamic: bool) -> None:
    check(plan, is_dynamic=is_dynamic)


@pytest.mark.exhaustive
@drawn(400)
@given(plan=plans(), is_dynamic=st.booleans())
def test_many_drawn_models_are_the_same_programs(plan: Plan, is_dynamic: bool) -> None:
    check(plan, is_dynamic=is_dynamic)


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "auto"])
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_block_is_seen(change: str, is_dynamic: bool) -> None:
    """With steps that read what changes."""
    observing = ("perceptron", "inner", "flag", "setting", "training", "note", "class attribute")
    check(Plan(8, observing, change, frozenset({6}), "plain"), is_dynamic=is_dynamic)


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "auto"])
@pytest.mark.parametrize("step", STEPS)
def test_each_step_is_traced_as_stock_torch_traces_it(step: str, is_dynamic: bool) -> None:
    check(Plan(9, (step,), "no bias", frozenset({7}), "start"), is_dynamic=is_dynamic)
