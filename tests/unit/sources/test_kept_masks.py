"""A causal mask that eager mode drops, where the attention is not causal without it, is in the report."""

from __future__ import annotations

import json

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


def test_sizes_that_vary_get_no_condition(tmp_path):
    """A window is compared with the length of the prompt, which then would have to be longer or shorter."""
    small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    small |= {"num_hidden_layers": 1, "vocab_size": 16, "sliding_window": 8}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral", **small}))

    program = fe.export(f"hf:{tmp_path}", dynamic_shapes="auto")

    assert all(found.lower <= 2 and found.upper > 1_000 for found in program.range_constraints.values())
