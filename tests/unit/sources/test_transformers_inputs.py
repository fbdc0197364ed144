"""Example inputs of transformers models: the model itself is the judge, it runs on them."""

import json

import pytest
import torch

from fakexport.sources import SourceError, resolve
from tests.unit.sources.tiny_configs import TEXT, TINY


@pytest.fixture
def tiny(tmp_path):
    """The source of a small model, from a config file."""

    def make(model_type, class_name="", **changes):
        path = tmp_path / f"{model_type}.json"
        path.write_text(json.dumps({"model_type": model_type, **TINY[model_type][0], **changes}))
        return resolve(f"hf:{path}{class_name and ':'}{class_name}")

    return make


def shapes(inputs):
    return {name: tuple(tensor.shape) for name, tensor in inputs.kwargs.items()}


@pytest.mark.parametrize("model_type", TINY)
def test_a_model_runs_on_its_inputs(tiny, model_type):
    source = tiny(model_type)
    module = source.factory()

    inputs = source.example_inputs(module, "cpu", None)

    with torch.no_grad():
        module(*inputs.args, **inputs.kwargs)
    assert shapes(inputs) == TINY[model_type][1]
    assert inputs.assumptions == ()


@pytest.mark.parametrize("model_type", ["llama", "vit", "whisper", "llava"])
def test_inputs_take_the_device_and_dtype_that_are_asked_for(tiny, model_type):
    source = tiny(model_type)
    with torch.device("meta"):
        module = source.factory()

    inputs = source.example_inputs(module, "meta", torch.bfloat16)

    assert all(tensor.is_meta for tensor in inputs.kwargs.values())
    assert {tensor.dtype for tensor in inputs.kwargs.values()} <= {torch.bfloat16, torch.int64}


def test_without_a_dtype_inputs_take_the_modules(tiny):
    source = tiny("vit")
    module = source.factory().to(torch.float64)

    inputs = source.example_inputs(module, "cpu", None)

    assert inputs.kwargs["pixel_values"].dtype is torch.float64


def test_the_other_classes_of_a_type_have_inputs_of_their_own(tiny):
    source = tiny("whisper", "WhisperForAudioClassification")
    module = source.factory()

    inputs = source.example_inputs(module, "cpu", None)

    module(**inputs.kwargs)
    assert shapes(inputs) == {"input_features": (2, 8, 40)}


def test_an_image_whose_place_is_unknown_is_left_out_and_said_so(tmp_path):
    path = tmp_path / "config.json"
    text = {
        **TEXT,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
    }
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4}
    path.write_text(json.dumps({"model_type": "qwen2_vl", "text_config": text, "vision_config": vision}))
    source = resolve(f"hf:{path}")
    module = source.factory()

    inputs = source.example_inputs(module, "cpu", None)

    with torch.no_grad():
        module(**inputs.kwargs)
    assert shapes(inputs) == {"input_ids": (2, 16), "attention_mask": (2, 16)}
    (sentence,) = inputs.assumptions
    assert sentence.startswith("pixel_values left out, since get_image_features raised ")
    assert "\n" not in sentence


def test_an_input_that_no_config_tells_is_asked_for(tmp_path):
    source = resolve("hf:blip_2_qformer")
    with torch.device("meta"):
        module = source.factory()

    with pytest.raises(SourceError) as caught:
        source.example_inputs(module, "meta", None)

    assert str(caught.value) == (
        "Blip2QFormerModel requires 'query_embeds', which its config does not tell: "
        "use --input query_embeds=DTYPE[DIMS]"
    )
