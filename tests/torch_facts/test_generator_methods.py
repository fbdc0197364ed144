"""Whatever sets the state of a generator by a public name calls a method of `torch.Generator`."""

from __future__ import annotations

import pytest
import torch

from fakexport._torch.generator_methods import default_generators_watched
from fakexport._torch.patching import set_in_class


def forks():
    with torch.random.fork_rng(devices=[]):
        torch.rand(2)


STATE = torch.get_rng_state()
SETTERS = {
    "manual_seed": [lambda: torch.manual_seed(3), lambda: torch.default_generator.manual_seed(3)],
    "set_state": [
        lambda: torch.set_rng_state(STATE),
        lambda: torch.default_generator.set_state(STATE),
        forks,
    ],
    "seed": [torch.seed],
    "initial_seed": [torch.initial_seed],
}


@pytest.mark.parametrize(("method", "call"), [(name, call) for name in SETTERS for call in SETTERS[name]])
def test_a_call_on_the_default_generator_is_told_with_its_method(method, call):
    told, callers = [], []

    def seen(name, frame):
        told.append(name)
        while frame is not None:
            callers.append(frame.f_code.co_filename)
            frame = frame.f_back

    with torch.random.fork_rng(devices=[]), default_generators_watched(seen):
        call()

    assert told == [method]
    assert __file__ in callers


@pytest.mark.parametrize(
    "call",
    [
        torch.get_rng_state,
        lambda: torch.rand(2),
        lambda: torch.Generator().manual_seed(3),
        lambda: torch.default_generator.clone_state(),
    ],
)
def test_a_draw_a_saved_state_and_a_generator_of_ones_own_are_not_told(call):
    told = []

    with default_generators_watched(lambda *seen: told.append(seen)):
        call()

    assert told == []


def test_the_class_is_as_it_was_and_seeds_as_before():
    before = dict(vars(torch.Generator))
    generator = torch.Generator()

    with default_generators_watched(lambda *seen: None):
        drawn = torch.rand(2, generator=generator.manual_seed(5))

    assert dict(vars(torch.Generator)) == before
    assert torch.equal(drawn, torch.rand(2, generator=torch.Generator().manual_seed(5)))


def test_a_class_of_c_gets_an_attribute_that_is_removed_again():
    set_in_class(torch.Generator, "of_a_test", 3)
    has_it = torch.Generator().of_a_test

    set_in_class(torch.Generator, "of_a_test", None)

    assert has_it == 3
    assert not hasattr(torch.Generator(), "of_a_test")
