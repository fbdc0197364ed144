"""A deferred construction of a real architecture equals its eager construction, bit for bit."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.architectures import ARCHITECTURES, Architecture, sampled
from tests.architectures.construction import Construction, assert_same, constructed, deferred, filled_memory

pytest.importorskip("transformers")


@dataclass(frozen=True)
class Both:
    """One architecture, constructed in both ways."""

    architecture: Architecture
    eager: Construction
    deferred: Construction


@pytest.fixture(scope="module", autouse=True)
def comparable_memory() -> Iterator[None]:
    with filled_memory():
        yield


COMMON = [str(architecture) for architecture in ARCHITECTURES if architecture.is_common]


@pytest.fixture(scope="module", params=sampled(ARCHITECTURES, in_every_run=COMMON[::24], in_ci=COMMON[::12]))
def both(request: pytest.FixtureRequest, comparable_memory: None) -> Both:
    architecture = request.param
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")
    return Both(architecture, constructed(architecture.build), constructed(deferred(architecture.build)))


def test_a_deferred_model_is_the_eager_one(both):
    assert_same(both.deferred.state, both.eager.state)


def test_a_deferred_construction_leaves_the_generator_where_the_eager_one_does(both):
    assert both.deferred.next_draw == both.eager.next_draw
