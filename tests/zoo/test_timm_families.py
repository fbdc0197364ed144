"""Deferred construction of a small model of every family of timm equals the eager one, bit for bit.

timm needs torchvision, which there is no build of beside every torch: by hand, with the Python of such an
environment, `PYTHONPATH=src python -m pytest -m slow tests/zoo/test_timm_families.py`.
"""

from collections.abc import Iterator

import pytest
import torch

from tests.architectures.construction import assert_same, constructed, deferred, filled_memory

timm = pytest.importorskip("timm", exc_type=ImportError)

pytestmark = [pytest.mark.slow, pytest.mark.zoo]

SMALL = ("test_", "atto", "femto", "pico", "nano", "micro", "xxs", "tiny", "mini", "xs", "small")
MAX_CANDIDATES = 6


@pytest.fixture(scope="module", autouse=True)
def comparable_memory() -> Iterator[None]:
    with filled_memory():
        yield


@pytest.mark.parametrize("family", timm.list_modules())
def test_a_deferred_model_is_the_eager_one(family):
    name = smallest(family)

    eager = constructed(lambda: timm.create_model(name))
    made_deferred = constructed(deferred(lambda: timm.create_model(name)))

    assert_same(made_deferred.state, eager.state)
    assert made_deferred.next_draw == eager.next_draw


def smallest(family: str) -> str:
    """The model with the fewest parameters among those of the family whose names promise few."""
    names = sorted(timm.list_models(module=family), key=lambda name: (promise(name), len(name)))
    return min(names[:MAX_CANDIDATES], key=parameter_count)


def promise(name: str) -> int:
    return next((place for place, word in enumerate(SMALL) if word in name), len(SMALL))


def parameter_count(name: str) -> int:
    with torch.device("meta"):
        model = timm.create_model(name)
    return sum(parameter.numel() for parameter in model.parameters())
