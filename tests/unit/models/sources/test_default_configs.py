"""Default configs of transformers that leave something open, or do not work."""

import pytest

import fakexport as fe
from fakexport.models.sources import resolve


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("blip-2", "image_token_id"), ("voxtral", "audio_token_id"), ("instructblipvideo", "video_token_id")],
)
def test_a_placeholder_token_that_a_default_config_leaves_open_is_assumed_and_named(model_type, name):
    source = resolve(f"hf:{model_type}")

    (sentence,) = [each for each in source.assumptions if "default configuration has no" in each]
    assert sentence.startswith(f"{model_type}'s default configuration has no {name}: ")


def test_a_token_that_a_default_config_names_stays():
    assert not any("default configuration has no" in sentence for sentence in resolve("hf:llava").assumptions)


@pytest.mark.parametrize(
    ("model_type", "code"), [("nemotron", "FE102"), ("ministral", "FE102"), ("vitmatte", "FE102")]
)
def test_a_default_config_that_does_not_work_is_repaired_by_a_published_one(model_type, code):
    (found,) = fe.check(f"hf:{model_type}").diagnostics

    assert found.code == code
    assert "own default config cannot build" in found.notes[1]
    assert found.fix.message.startswith("pass the config of a published model: ")


def test_before_it_is_trained_for_a_task_a_model_without_a_head_is_taken():
    source = resolve("hf:sapiens2")

    assert "hf:sapiens2 does not specify a class: assuming Sapiens2Model" in source.assumptions
