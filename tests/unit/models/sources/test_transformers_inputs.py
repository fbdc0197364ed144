"""Example inputs of transformers models: the model itself is the judge, it runs on them."""

import json

import pytest
import torch
from transformers import PretrainedConfig, PreTrainedModel

import fakexport as fe
from fakexport.emulation.fake import fake_mode
from fakexport.models.sources import SourceError, resolve
from fakexport.models.sources.media_inputs.input_table import builder
from fakexport.models.sources.transformers.input_request import InputRequest
from fakexport.models.sources.transformers.transformers_inputs import derive_inputs
from tests.architectures.architecture import Architecture
from tests.unit.models.sources.tiny_configs import TINY

# With positions in three dimensions; with windows; with a resampled table of positions.
GRIDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
# Vision towers alone: with windows; with a resampled table of positions.
# One has layers that merge patches before the one that takes them.
TOWERS = (
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("qwen2_5_vl_vision", "qwen3_omni_moe_vision_encoder")
    ),
    "qwen3_vl_vision",
)

# Towers that read the grid: they cut the image by it; they resample positions to it.
READERS = (
    "cosmos3_edge_vision",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("glm_image_vision", "hunyuan_vl_vision")),
)

# Types with inputs whose names do not tell what they are.
NAMED_OTHERWISE = (
    "blt_global_transformer",
    "decision_transformer",
    "muse_glimmer_assistant",
    "paddleocr_vl_vision",
    "qwen2_5_omni_dit",
    "qwen3_omni_moe_talker_code_predictor",
    "rag",
    "voxtral_realtime_text",
    "xmod",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma4_vision", "granite_speech_encoder")),
    pytest.param("seggpt", marks=pytest.mark.slow),
    pytest.param("vibevoice_acoustic_tokenizer_encoder", marks=pytest.mark.slow),
)


@pytest.fixture
def grid_source(tmp_path):
    """The source of a small model that takes a grid of patches."""
    return lambda model_type: resolve(
        Architecture(model_type, "AutoModelForImageTextToText", True).source(tmp_path)
    )


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


def test_an_image_has_the_size_of_its_prompt_or_of_the_timm_model_inside():
    module = torch.nn.Sequential(torch.nn.Linear(1, 1))
    module.config = PretrainedConfig()
    module[0].pretrained_cfg = {"input_size": (3, 48, 40)}

    request, pixels = InputRequest(module, "cpu", torch.float32), builder("", "pixel_values")
    of_timm = pixels(request).shape
    module.config.prompt_encoder_config = PretrainedConfig(image_size=64)

    assert (of_timm, pixels(request).shape) == ((2, 3, 48, 40), (2, 3, 64, 64))


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


@pytest.mark.parametrize("model_type", GRIDS)
def test_an_image_on_a_grid_is_computed_as_transformers_computes_it(grid_source, model_type):
    source = grid_source(model_type)
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None)
    inputs.kwargs["pixel_values"].normal_()

    ids = inputs.kwargs["input_ids"]
    names = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw")
    plain = {name: inputs.kwargs[name] for name in names}
    with torch.no_grad():
        derived = module(**inputs.kwargs).logits
        expected = module(**plain, mm_token_type_ids=(ids == module.config.image_token_id).long()).logits

    assert torch.equal(derived, expected)
    assert inputs.omitted == {}
    (sentence,) = inputs.assumptions
    assert sentence.startswith("one image of ")


@pytest.mark.parametrize("model_type", TOWERS)
def test_a_vision_tower_alone_is_computed_as_transformers_computes_it(tmp_path, model_type):
    source = resolve(Architecture(model_type, "", True).source(tmp_path).rstrip(":"))
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None).kwargs
    inputs["hidden_states"].normal_()
    bound = fe.bind(fe.export(source), module.state_dict())

    with torch.no_grad():
        of_grid = {name: inputs[name] for name in ("hidden_states", "grid_thw")}
        expected = module(**of_grid).last_hidden_state
        found = bound.module()(**inputs)["last_hidden_state"]

    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("model_type", READERS)
def test_a_grid_is_numbers_where_a_trace_would_have_to_know_them(tmp_path, model_type):
    source = resolve(Architecture(model_type, "", True).source(tmp_path).rstrip(":"))
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None).kwargs
    pixels, grid = (name for name in inputs if not name.endswith("cu_seqlens"))
    inputs[pixels].normal_()
    bound = fe.bind(fe.export(source), module.state_dict())

    with torch.no_grad():
        expected = module(inputs[pixels], torch.tensor(inputs[grid]))
        found = bound.module()(**inputs)

    assert isinstance(inputs[grid], list)
    for name, value in found.items():
        assert torch.allclose(value, expected[name], atol=1e-5), name


@pytest.mark.parametrize("model_type", NAMED_OTHERWISE)
def test_a_model_with_inputs_of_its_own_exports_what_eager_computes(tmp_path, model_type):
    source = resolve(Architecture(model_type, "", True).source(tmp_path).rstrip(":"))
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None).kwargs
    for value in inputs.values():
        if value.is_floating_point():
            value.normal_()
    bound = fe.bind(fe.export(source), module.state_dict())

    with torch.no_grad():
        expected = _first(module(**inputs))
        found = _first(bound.module()(**inputs))

    assert torch.allclose(found, expected, atol=1e-5)


def _first(result):
    return result if isinstance(result, torch.Tensor) else next(iter(result.values()))


def test_an_encoder_that_shortens_its_sequence_gets_no_mask_that_fits_its_first_layer(tmp_path):
    """Informer's attention draws the keys that it compares queries with."""
    source = resolve(Architecture("informer", "", True).source(tmp_path).rstrip(":"))
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None).kwargs
    inputs["past_values"].normal_()
    bound = fe.bind(fe.export(source), module.state_dict()).module()

    with torch.no_grad():
        torch.manual_seed(0)
        expected = module(**inputs)
        torch.manual_seed(0)
        found = bound(**inputs)

    assert module.config.distil
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-5), name


@pytest.mark.parametrize(
    "model_type", ["higgs_audio_v2", pytest.param("inkling_mm_model", marks=pytest.mark.slow)]
)
def test_a_sound_that_is_numbers_is_in_the_program(tmp_path, model_type):
    """Codes of codebooks, and bins of a spectrogram: no input says that they are a sound but their name."""
    source = resolve(Architecture(model_type, "", True).source(tmp_path).rstrip(":"))
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None)
    bound = fe.bind(fe.export(source), module.state_dict()).module()
    given = {
        name: torch.randn_like(value) if value.is_floating_point() else value
        for name, value in inputs.kwargs.items()
    }
    other = {**given, "audio_input_ids": given["audio_input_ids"] + 1}

    with torch.no_grad():
        expected, found = module(**given).logits, bound(**given)["logits"]

    assert inputs.omitted == {}
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(bound(**other)["logits"], expected, atol=1e-5)


def test_an_image_that_needs_more_than_a_grid_is_omitted(tmp_path):
    """GLM-Image counts the images to make with it, one grid of each."""
    source = resolve(Architecture("glm_image", "", True).source(tmp_path).rstrip(":"))

    inputs = source.example_inputs(source.factory(), "cpu", None)

    assert "images_per_sample" in inputs.omitted["pixel_values"]
    assert shapes(inputs) == {"input_ids": (2, 16), "attention_mask": (2, 16)}


def test_the_bytes_of_a_part_are_patches_of_one(tmp_path):
    """The model around it gives it the patches, and a mask that is not an input."""
    source = resolve(Architecture("blt_local_encoder", "", True).source(tmp_path).rstrip(":"))
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None).kwargs
    bound = fe.bind(fe.export(source), module.state_dict())

    with torch.no_grad():
        expected, found = module(**inputs), bound.module()(**inputs)

    assert set(inputs) == {"input_ids", "num_patches", "patch_ids"}
    torch.testing.assert_close(found, expected)


def test_a_prompt_that_is_read_in_both_directions_is_one_in_the_program_too(grid_source):
    """Eager drops a mask of ones, and a trace cannot: without token types the program would be causal."""
    source = grid_source("paligemma")
    module = source.factory()
    inputs = source.example_inputs(module, "cpu", None).kwargs
    inputs["pixel_values"].normal_()
    bound = fe.bind(fe.export(source), module.state_dict())

    with torch.no_grad():
        expected = module(**inputs).logits
        found = bound.module()(**inputs)["logits"]

    assert inputs["token_type_ids"].shape == inputs["input_ids"].shape
    assert torch.allclose(found, expected, atol=1e-5)
    with torch.no_grad():
        module.model.language_model.layers[0].self_attn.is_causal = True
        assert not torch.allclose(module(**inputs | {"token_type_ids": None}).logits, expected, atol=1e-5)


def test_the_grid_keeps_its_values_in_a_fake_mode(grid_source):
    source = grid_source("qwen2_vl")
    real = source.example_inputs(source.factory(), "cpu", None)

    with fake_mode("H100"):
        with torch.device("cuda"):
            module = source.factory()
        inputs = source.example_inputs(module, "cuda", None)
        values = {name: tensor.tolist() for name, tensor in inputs.kwargs.items() if "pixel" not in name}

    assert values == {name: real.kwargs[name].tolist() for name in values}
    assert {str(tensor.device) for tensor in inputs.kwargs.values()} == {"cuda:0"}


def test_an_image_on_a_grid_that_eager_mode_does_not_take_is_omitted(tmp_path):
    """A trace compares features with tokens when the program runs: it would export."""
    spec = Architecture("qwen2_vl", "AutoModelForImageTextToText", True).source(tmp_path)
    path = next(tmp_path.rglob("*.json"))
    config = json.loads(path.read_text())
    config["vision_config"]["hidden_size"] *= 2
    path.write_text(json.dumps(config))
    source = resolve(spec)

    omitted = source.example_inputs(source.factory(), "cpu", None).omitted

    assert "eager mode fails with this input too: ValueError: Image features" in omitted["pixel_values"]


def test_an_image_or_a_sound_that_the_config_has_no_tower_for_is_no_input(tmp_path):
    source = resolve(Architecture("gemma4_unified", "AutoModelForImageTextToText", True).source(tmp_path))
    module = source.factory()

    inputs = source.example_inputs(module, "cpu", None)

    with torch.no_grad():
        module(**inputs.kwargs)
    assert shapes(inputs) == {"input_ids": (2, 16), "attention_mask": (2, 16)}
    assert not any("vision" in name or "audio" in name for name, _ in module.named_parameters())
    assert inputs.omitted == {}


def test_pixels_that_are_not_derived_are_omitted():
    """Phi-4 multimodal runs without them, as a model of text alone."""
    source = resolve("hf:phi4_multimodal")
    with fake_mode("cpu"):
        inputs = source.example_inputs(source.factory(), "cpu", None)

    assert "image_pixel_values" in inputs.omitted


def test_one_input_of_a_kind_is_enough(tiny):
    """A wav2vec2 has a parameter that it uses in training alone, and takes no other sound."""
    for model_type in ("wav2vec2", "whisper", "clip", "llava", "perceiver"):
        source = tiny(model_type)
        with fake_mode("cpu"):
            module = source.factory()

            assert source.example_inputs(module, "cpu", None).omitted == {}


def test_an_input_that_no_config_tells_is_asked_for(tmp_path):
    source = resolve("hf:blip_2_qformer")
    with torch.device("meta"):
        module = source.factory()

    with pytest.raises(SourceError) as caught:
        source.example_inputs(module, "meta", None)

    assert str(caught.value) == (
        "Blip2QFormerModel requires 'query_embeds', which its config does not determine: "
        "use --input query_embeds=DTYPE[DIMS]"
    )


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("qwen3_asr_encoder", "Qwen3ASREncoder requires windows of audio clips"),
        ("qwen3_omni_moe_audio_encoder", "Qwen3OmniMoeAudioEncoder requires windows of audio clips"),
    ],
)
def test_what_only_a_whole_model_or_its_processor_knows_is_asked_for(tmp_path, model_type, named):
    source = resolve(Architecture(model_type, "", True).source(tmp_path).rstrip(":"))

    with pytest.raises(SourceError, match="which its config does not determine: use --input") as caught:
        source.example_inputs(source.factory(), "cpu", None)

    assert str(caught.value).startswith(named)


def test_a_sound_that_only_a_processor_cuts_is_omitted(tmp_path):
    source = resolve(Architecture("csm", "AutoModelForTextToWaveform", True).source(tmp_path))

    inputs = source.example_inputs(source.factory(), "cpu", None)

    assert inputs.omitted == {"input_values": "only the model's processor can compute input_values_cutoffs"}
    assert shapes(inputs) == {"input_ids": (2, 16), "attention_mask": (2, 16)}


def test_the_first_input_that_cannot_be_derived_is_named():
    class Demanding(PreTrainedModel):
        config_class = PretrainedConfig

        def forward(self, theta, eta, zeta, epsilon, delta, gamma, beta, alpha):
            return theta

    with pytest.raises(SourceError, match="requires 'theta'"):
        derive_inputs(Demanding(PretrainedConfig()), "cpu", torch.float32)


def test_a_prompt_asks_one_question_and_gets_a_score_for_each_of_its_options(tmp_path):
    source = resolve(Architecture("jev", "AutoModelForDecision", True).source(tmp_path))
    model = source.factory()

    inputs = source.example_inputs(model, "cpu", None)

    assert shapes(inputs) == {
        "input_ids": (1, 16),
        "marks": (1, 1),
        "num_options": (1, 1),
        "question_type_ids": (1, 1),
    }
    with torch.no_grad():
        assert model(**inputs.kwargs).shape == (2,)
