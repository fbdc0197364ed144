"""Default configs of transformers that leave something open, or contradict themselves."""

from types import SimpleNamespace

import pytest
import torch

from fakexport.sources import resolve
from fakexport.sources.config_conflicts import conflict_of
from fakexport.sources.input_request import InputRequest
from fakexport.sources.transformers_config import default_config


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("blip-2", "image_token_id"), ("voxtral", "audio_token_id"), ("instructblipvideo", "video_token_id")],
)
def test_a_placeholder_token_that_a_default_config_leaves_open_is_assumed_and_named(model_type, name):
    source = resolve(f"hf:{model_type}")

    (sentence,) = [each for each in source.assumptions if "leaves" in each]
    assert sentence.startswith(f"{model_type}'s default configuration leaves {name} empty: ")


def test_a_token_that_a_default_config_names_stays():
    assert not any("leaves" in sentence for sentence in resolve("hf:llava").assumptions)


CONFLICTS = [
    ("gemma3", "vision", "an image is 14 x 14 patches, too few for mm_tokens_per_image=256"),
    ("modernvbert", "vision", "an image is 14 x 14 patches, which pixel_shuffle_factor=4 does not divide"),
    ("llama4", "vision", "pixel_shuffle_ratio=0.5 makes 3072 channels of hidden_size=768, and "),
    (
        "granite_speech",
        "audio",
        "the projector takes encoder_hidden_size=1408 of an encoder with hidden_dim=",
    ),
    ("idefics3", "vision", None),
    ("paligemma", "vision", None),
    ("qwen2_audio", "audio", None),
]


@pytest.mark.parametrize(("model_type", "role", "clause"), CONFLICTS)
def test_a_config_that_contradicts_itself_is_named(model_type, role, clause):
    module = SimpleNamespace(config=default_config(model_type))

    found = conflict_of(InputRequest(module, "cpu", torch.float32), role)

    assert (found is None) == (clause is None)
    assert clause is None or clause in found
