"""Small models of real architectures: retargeted, they are the programs of an export for the other device."""

from __future__ import annotations

import pytest

from tests.architectures import ARCHITECTURES
from tests.retargeting import ATTENTION, EXPERTS, LITERALS, both_programs, differences

pytest.importorskip("transformers")

BY_NAME = {str(architecture): architecture for architecture in ARCHITECTURES}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "llama", "bert", "resnet")]
)
def test_up_and_down_it_is_the_native_program(name, tmp_path):
    assert differences(both_programs(BY_NAME[name], tmp_path)) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [("vit", ATTENTION), ("mixtral", EXPERTS), ("deberta", LITERALS)],
)
def test_a_model_that_asks_for_its_device_is_told_apart(name, reason, tmp_path):
    assert differences(both_programs(BY_NAME[name], tmp_path)) == {reason}
