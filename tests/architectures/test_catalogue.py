"""The catalogue is good for tests: small models, that one seed makes the same again."""

import pytest
import torch

from tests.architectures import ARCHITECTURES
from tests.architectures.module_state import module_state

pytest.importorskip("transformers")

MAX_PARAMETERS = 5_000_000


def test_every_model_type_is_listed_once():
    model_types = [str(architecture) for architecture in ARCHITECTURES]

    assert len(set(model_types)) == len(model_types)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=str)
def test_one_seed_makes_one_small_model(architecture):
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {architecture}")

    torch.manual_seed(0)
    first = architecture.build()
    torch.manual_seed(0)
    second = architecture.build()

    assert sum(parameter.numel() for parameter in first.parameters()) < MAX_PARAMETERS
    assert module_state(first) == module_state(second)
