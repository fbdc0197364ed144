"""Fake export, bind, run: what eager gives, bit for bit, for two sizes that the export did not see."""

from __future__ import annotations

import pytest
import torch

import fakexport as fe
from fakexport.archive.weights import BindError, WeightsWarning
from fakexport.exporting.program import RetargetError
from tests.unit.archive.weights.real_models import real_model, tensors_in


def tokens(batch, length, *, extra=()):
    generator = torch.Generator().manual_seed(batch * length)
    ids = {name: torch.randint(3, 60, (batch, length), generator=generator) for name in ("input_ids", *extra)}
    return {**ids, "attention_mask": torch.ones(batch, length, dtype=torch.int64)}


def text(*extra):
    return [tokens(1, 7, extra=extra), tokens(3, 20, extra=extra)]


def images(name="pixel_values", shape=(3, 32, 32)):
    generator = torch.Generator().manual_seed(0)
    return [{name: torch.randn(batch, *shape, generator=generator)} for batch in (1, 5)]


CASES = {
    "llama": text(),
    "gpt2": text(),
    "mixtral": text(),
    "gpt_oss": text(),
    "bert": text(),
    "bart": text("decoder_input_ids"),
    # Codes of three channels of sound.
    "dia": [
        {**inputs, "decoder_input_ids": inputs["input_ids"].unsqueeze(-1) % torch.tensor([61, 31, 17])}
        for inputs in text()
    ],
    "vit": images(),
    "wav2vec2": images("input_values", (1280,)),
}


# Their code branches on the device: the program of a GPU calls what the CPU has no kernel for.
BRANCH_ON_THE_DEVICE = ["mixtral", "gpt_oss"]
RUNS = [
    pytest.param(
        model_type,
        "cpu" if model_type in BRANCH_ON_THE_DEVICE else "H100",
        marks=[] if model_type == "gpt2" else pytest.mark.slow,
    )
    for model_type in CASES
]


@pytest.mark.parametrize(("model_type", "target"), RUNS)
def test_a_bound_program_gives_what_eager_gives(model_type, target, tmp_path):
    model = real_model(model_type, tmp_path)
    program = model.program(target, dynamic_shapes="auto")

    bound = fe.bind(program, model.checkpoint, devices="cpu")

    run = bound.module()
    for inputs in CASES[model_type]:
        expected, found = model.eager(inputs), tensors_in(run(**inputs))
        assert len(expected) == len(found) > 0
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)), inputs.keys()


@pytest.mark.slow
@pytest.mark.parametrize("model_type", BRANCH_ON_THE_DEVICE)
def test_a_program_that_branched_on_its_device_is_refused_with_what_the_cpu_lacks(model_type, tmp_path):
    model = real_model(model_type, tmp_path)

    with pytest.raises(RetargetError, match="histogram_cpu") as caught:
        fe.bind(model.program("H100"), model.checkpoint, devices="cpu")

    assert {diagnostic.code for diagnostic in caught.value.diagnostics} == {"FE504"}


@pytest.mark.slow
def test_the_base_model_takes_its_part_of_the_whole_models_checkpoint(tmp_path):
    model = real_model("mixtral", tmp_path)
    model.spec += ":MixtralModel"

    with pytest.warns(WeightsWarning, match=r"FE704: .*: lm_head\.weight"):
        bound = fe.bind(model.program(), model.checkpoint)

    inputs = tokens(2, 16)
    with torch.no_grad():
        expected = model.module.model(**inputs).last_hidden_state
    assert torch.equal(bound.module()(**inputs)["last_hidden_state"], expected)


@pytest.mark.slow
def test_a_program_made_of_another_is_told_its_model(tmp_path):
    model = real_model("mixtral", tmp_path)
    (model.checkpoint / "config.json").unlink()
    program = fe.export(model.spec).run_decompositions({})

    with pytest.raises(BindError, match="FE701"):
        fe.bind(program, model.checkpoint)

    assert has_the_experts_of(model, fe.bind(program, model.checkpoint, source=model.spec))


def has_the_experts_of(model, bound):
    name = "model.layers.1.mlp.experts.down_proj"
    return torch.equal(bound.state_dict[name], model.module.state_dict()[name])
