"""What `fakexport._torch.dispatch_observer` relies on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fakexport._torch.dispatch_observer import observe, observed
from fakexport._torch.fake_tensors import new_fake_mode


class Notes:
    def __init__(self) -> None:
        self.operators: list[str] = []

    def __call__(self, run: Any, operator: Any, args: Any, kwargs: Any) -> Any:
        self.operators.append(str(operator))
        return run()


def test_a_mode_asks_its_instance_for_dispatch() -> None:
    mode, notes = new_fake_mode(), Notes()

    with mode, observed(mode, notes):
        torch.ones(2).add_(1)
    with mode:
        torch.ones(2)

    assert [name for name in notes.operators if not name.startswith("prim.")] == [
        "aten.ones.default",
        "aten.add_.Tensor",
    ]


def test_operators_inside_of_an_operator_are_not_seen() -> None:
    mode, notes = new_fake_mode(), Notes()

    with mode, observed(mode, notes):
        torch.nn.functional.gelu(torch.ones(2), approximate="tanh")
        torch.logaddexp(torch.ones(2), torch.ones(2))

    assert len([name for name in notes.operators if not name.startswith("prim.")]) == 5


def test_the_observer_may_answer_itself() -> None:
    mode = new_fake_mode()

    with (
        mode,
        observed(mode, lambda run, operator, args, kwargs: 7.0 if "scalar" in str(operator) else run()),
    ):
        assert torch.ones(2).sum().item() == 7.0


def test_the_mode_is_as_before_after_an_error() -> None:
    mode = new_fake_mode()

    with pytest.raises(ZeroDivisionError), mode, observed(mode, Notes()):
        raise ZeroDivisionError

    assert "dispatch" not in vars(mode)


@pytest.mark.parametrize(
    ("make", "kwargs"),
    [
        (lambda: torch.Tensor(3), {"dtype", "layout", "device"}),
        (lambda: torch.FloatTensor(2, 3), {"dtype", "layout", "device"}),
        (lambda: torch.empty(3), {"device", "pin_memory"}),
        (lambda: torch.empty(3, dtype=torch.half), {"dtype", "device", "pin_memory"}),
    ],
)
def test_only_legacy_constructors_say_nothing_about_pinned_memory(make: Any, kwargs: set[str]) -> None:
    seen: list[set[str]] = []
    mode = new_fake_mode()

    def note(run: Any, operator: Any, args: Any, given: Any) -> Any:
        seen.append(set(given))
        return run()

    with mode, observed(mode, note), torch.device("meta"):
        make()

    assert len(seen) == 1
    assert {name for name in seen[0] if name != "device"} | {"device"} == kwargs


@pytest.mark.parametrize("make", [torch.tensor, torch.FloatTensor, torch.as_tensor])
def test_a_literal_arrives_as_a_lift_of_a_real_tensor(make: Any) -> None:
    mode = new_fake_mode()
    lifted: list[type] = []

    def note(run: Any, operator: Any, args: Any, kwargs: Any) -> Any:
        if operator is torch.ops.aten.lift_fresh.default:
            lifted.append(type(args[0]))
        return run()

    with mode, observed(mode, note):
        make([1.0, 2.0])

    assert lifted == [torch.Tensor]


def test_an_observer_of_the_mode_sees_what_happens_outside_of_it_and_of_other_observers() -> None:
    mode, always, sometimes = new_fake_mode(), Notes(), Notes()
    observe(mode, always)

    with mode, observed(mode, sometimes):
        weight = torch.ones(2)
    weight.add_(1)

    assert sometimes.operators == ["aten.ones.default"]
    assert always.operators == ["aten.add_.Tensor"]
