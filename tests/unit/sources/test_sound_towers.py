"""Encoders that hear all sounds of a batch in one sequence compute in a program what they compute eagerly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import fakexport as fe
from fakexport.sources import Source, resolve
from tests.architectures import Architecture


@pytest.fixture
def made(tmp_path):
    """The source of a small encoder, and the encoder with weights."""

    def make(model_type: str) -> tuple[Source, nn.Module]:
        architecture = Architecture(model_type, "", is_common=False)
        if not architecture.is_available:
            pytest.skip(f"this transformers has no {model_type}")
        source = resolve(architecture.source(tmp_path).rstrip(":"))
        torch.manual_seed(0)
        return source, source.factory().eval()

    return make


def test_an_encoder_of_masked_sounds_takes_masks_of_equal_sounds_alone(made):
    source, model = made("qwen3_asr_encoder")
    given = dict(source.example_inputs(model, "cpu", None).kwargs)
    program = fe.bind(fe.export(source), dict(model.state_dict())).module()
    sound = torch.randn_like(given["input_features"])

    whole = given["input_features_mask"]
    shorter, unequal = whole.clone(), whole.clone()
    shorter[:, 40:] = unequal[1, 40:] = 0
    for mask, ends in ((whole, [0, 13, 26]), (shorter, [0, 5, 10])):
        with torch.no_grad():
            expected = model(sound, mask).last_hidden_state
        found = program(
            input_features=sound, input_features_mask=mask, cu_seqlens=torch.tensor(ends, dtype=torch.int32)
        )
        torch.testing.assert_close(found["last_hidden_state"], expected)
    # What transformers.exporters puts instead of the attention takes no others, and the program checks it.
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        program(
            input_features=sound,
            input_features_mask=unequal,
            cu_seqlens=torch.tensor([0, 13, 18], dtype=torch.int32),
        )


@pytest.mark.parametrize("model_type", ["qwen2_5_omni_audio_encoder", "qwen3_omni_moe_audio_encoder"])
def test_an_encoder_of_packed_sounds_takes_their_windows(made, model_type):
    source, model = made(model_type)
    given = dict(source.example_inputs(model, "cpu", None).kwargs)
    program = fe.bind(fe.export(source), dict(model.state_dict())).module()

    windows = torch.randn_like(given["padded_feature"])
    packed = torch.cat(list(windows), dim=1)
    lengths = torch.tensor([packed.shape[1] // 2] * 2)
    with torch.no_grad():
        expected = model(packed, feature_lens=lengths).last_hidden_state
    found = program(**{**given, "padded_feature": windows})["last_hidden_state"]

    torch.testing.assert_close(found, expected)


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
