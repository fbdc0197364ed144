"""A causal mask that eager mode drops, where the attention is not causal without it, is FE908."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fakexport as fe
from fakexport.models.sources import resolve
from tests.architectures import ARCHITECTURES

BY_NAME = {str(architecture): architecture for architecture in ARCHITECTURES}


def findings(source):
    return [found for found in fe.check(source).diagnostics if found.code == "FE908"]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_program_is_eager_mode_with_the_fix_and_another_thing_without(attention, tmp_path):
    config = Path(BY_NAME["aimv2"].source(tmp_path).removeprefix("hf:").partition(":")[0])
    config.write_text(json.dumps({**json.loads(config.read_text()), "attn_implementation": attention}))
    source = f"hf:{config}:AutoModel"
    made = resolve(source)
    torch.manual_seed(0)
    model = made.factory().eval()
    inputs = made.example_inputs(model, "cpu", None).kwargs
    inputs["input_ids"] = torch.randint(3, 60, inputs["input_ids"].shape)
    inputs["pixel_values"] = torch.randn(inputs["pixel_values"].shape)

    report = fe.check(source)
    program = fe.bind(report.verdicts[0].program, model.state_dict()).module()
    found = [found for found in report.diagnostics if found.code == "FE908"]
    padded = inputs["attention_mask"].clone()
    padded[:, -1] = 0

    if attention == "sdpa":
        (found,) = found
        assert found.count == len(model.text_model.encoder.layers)
        assert found.module_path == "text_model.encoder.layers.0.attention"
        assert "modeling_aimv2.py" in found.primary.span.path
    else:
        assert found == []
    with torch.no_grad():
        for mask, is_same in ((inputs["attention_mask"], attention == "eager"), (padded, True)):
            given = {**inputs, "attention_mask": mask}
            pair = (program(**given)["text_embeds"], model(**given)["text_embeds"])
            assert torch.allclose(*pair, atol=1e-5) == is_same


def test_a_model_of_a_factory_has_it_too(tmp_path):
    model = resolve(BY_NAME["aimv2"].source(tmp_path)).factory().eval()
    inputs = {"input_ids": torch.ones(2, 8, dtype=torch.int64), "pixel_values": torch.zeros(2, 3, 32, 32)}

    report = fe.check(model, kwargs=inputs | {"attention_mask": torch.ones(2, 8, dtype=torch.int64)})

    assert [found.code for found in report.diagnostics if found.severity == "warning"] == ["FE908"]


@pytest.mark.parametrize("name", ["bart", "llama", "bert"])
def test_masks_of_causal_attention_and_of_encoders_are_not_mentioned(name, tmp_path):
    assert findings(BY_NAME[name].source(tmp_path)) == []


def test_sizes_that_vary_get_no_condition(tmp_path):
    """A window is compared with the length of the prompt, which then would have to be longer or shorter."""
    small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    small |= {"num_hidden_layers": 1, "vocab_size": 16, "sliding_window": 8}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral", **small}))

    program = fe.export(f"hf:{tmp_path}", dynamic_shapes="auto")

    assert all(found.lower <= 2 and found.upper > 1_000 for found in program.range_constraints.values())
