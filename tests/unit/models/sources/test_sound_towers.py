"""Models that read their audio mask compute in a program what they compute eagerly."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

import fakexport as fe
from fakexport.models.sources import resolve
from tests.architectures import Architecture


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "class_name"),
    [
        ("qwen3_asr", "Qwen3ASRForConditionalGeneration"),
        ("qwen2_5_omni_thinker", "Qwen2_5OmniThinkerForConditionalGeneration"),
        ("qwen3_omni_moe_thinker", "Qwen3OmniMoeThinkerForConditionalGeneration"),
    ],
)
def test_a_whole_model_computes_what_it_computes_of_what_a_processor_returns(
    model_type, class_name, tmp_path
):
    architecture = Architecture(model_type, class_name, is_common=False)
    if not architecture.is_available:
        pytest.skip(f"this transformers has no {model_type}")
    source = resolve(architecture.source(tmp_path))
    torch.manual_seed(0)
    model = source.factory().eval()
    given = dict(source.example_inputs(model, "cpu", None).kwargs)
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32 and name != "position_ids":
            given[name] = value if "weights" in name else torch.randn_like(value)
    program = fe.bind(fe.export(source), dict(model.state_dict())).module()

    (mask,) = (name for name in given if name.endswith(("features_mask", "feature_attention_mask")))
    processed = {
        "input_ids",
        "attention_mask",
        "input_features",
        "pixel_values",
        "image_grid_thw",
    } & given.keys()
    lengths = torch.ones(given["input_features"].shape[0], given["input_features"].shape[-1]).long()
    with torch.no_grad():
        expected = model(**{name: given[name] for name in processed}, **{mask: lengths}).logits

    assert isinstance(given[mask], list)
    torch.testing.assert_close(program(**given)["logits"], expected)
