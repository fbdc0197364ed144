"""A causal mask that eager mode drops, where the attention is not causal without it, is in the report."""

from __future__ import annotations

import pytest
import torch

import fakexport as fe
from fakexport.sources import resolve
from tests.architectures import ARCHITECTURES

BY_NAME = {str(architecture): architecture for architecture in ARCHITECTURES}


def notes(source):
    return [note for note in fe.check(source).verdicts[0].notes if "keeps the causal mask" in note]


def test_the_report_says_that_eager_mode_computes_another_thing(tmp_path):
    source = BY_NAME["aimv2"].source(tmp_path)
    made = resolve(source)
    torch.manual_seed(0)
    model = made.factory().eval()
    inputs = made.example_inputs(model, "cpu", None).kwargs
    inputs["input_ids"] = torch.randint(3, 60, inputs["input_ids"].shape)
    inputs["pixel_values"] = torch.randn(inputs["pixel_values"].shape)
    program = fe.bind(fe.export(source), model.state_dict()).module()

    (note,) = notes(source)
    padded = inputs["attention_mask"].clone()
    padded[:, -1] = 0

    assert "attention such as text_model.encoder.layers.0.attention, as for padded inputs" in note
    with torch.no_grad():
        for mask, is_same in ((inputs["attention_mask"], False), (padded, True)):
            given = {**inputs, "attention_mask": mask}
            pair = (program(**given)["text_embeds"], model(**given)["text_embeds"])
            assert torch.allclose(*pair, atol=1e-5) == is_same


@pytest.mark.parametrize("name", ["bart", "llama", "bert"])
def test_masks_of_causal_attention_and_of_encoders_are_not_mentioned(name, tmp_path):
    assert notes(BY_NAME[name].source(tmp_path)) == []
