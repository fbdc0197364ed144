"""Stages of published families in two and four gloo processes, with torch's GPipe schedule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fakexport as fe
from fakexport.deploy import LoadedProgram
from fakexport.models.sources import resolve
from tests.architectures import ARCHITECTURES
from tests.gloo_ranks import run_stage, spawned
from tests.round_trip.reference import real_model, template_of
from tests.round_trip.sizes import as_shapes
from tests.round_trip.values import real_inputs
from tests.zoo.test_pipeline_stages import source_of

pytest.importorskip("transformers")
pytestmark = [pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]

FAMILIES = ("llama", "qwen3", "gemma2", "mixtral", "deepseek_v3", "gpt2", "bert", "t5", "whisper", "vit")
IN_CI = ("llama", "t5")


@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in IN_CI else pytest.mark.exhaustive)
        for name in FAMILIES
    ],
)
def test_processes_give_what_the_program_gives(name: str, stages: int, tmp_path: Path) -> None:
    (architecture,) = (each for each in ARCHITECTURES if str(each) == name)
    source = source_of(architecture, tmp_path, depth=4)
    assert source is not None
    program = fe.export(source, dtype="float32", dynamic_shapes="auto")
    module = real_model(resolve(source), "float32").eval()
    state = dict(module.state_dict())
    bound = fe.bind(program, state, check_finite=False)
    template = template_of(resolve(source), module, bound)
    config = getattr(module, "config", None)
    inputs = real_inputs(template, as_shapes(template), config, seed=1, is_padded=False)
    wanted = LoadedProgram(bound)({name: value.clone() for name, value in inputs.items()})
    fe.save_bundle(fe.bind(fe.split(program, stages), state, check_finite=False), tmp_path / "stages.pt2")
    torch.save(inputs, tmp_path / "inputs.pt")

    first, *others = spawned(run_stage, tmp_path, stages)

    assert others == [{}] * (stages - 1)
    assert first.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(first[key].nan_to_num(), value.nan_to_num()), key
