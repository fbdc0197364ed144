"""Default configs of transformers that leave something open, or contradict themselves."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from transformers import CONFIG_MAPPING

import fakexport as fe
from fakexport.sources import resolve
from fakexport.sources.config_conflicts import conflict_of
from fakexport.sources.default_settings import _RULES, set_what_is_determined
from fakexport.sources.input_request import InputRequest
from fakexport.sources.transformers_config import default_config
from tests.architectures.sample import sampled


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
    module = SimpleNamespace(config=CONFIG_MAPPING[model_type]())

    found = conflict_of(InputRequest(module, "cpu", torch.float32), role)

    assert (found is None) == (clause is None)
    assert clause is None or clause in found


# Of each kind of rule one: what transformers documents; a width that another setting has; what it knows of a
# vocabulary; what the whole type sets in its part; what a list is added to; what the model's own code says of
# its positions; what is set under a misspelled name; images of which the model can make its tokens.
DETERMINED = {
    "hunyuan_v1_dense": {"head_dim": (None, 128)},
    "nemotron": {"num_key_value_heads": (None, 48)},
    "glm4v": {"text_config.rope_parameters.partial_rotary_factor": (None, 0.5)},
    "glm4v_moe_text": {"head_dim": (None, 128)},
    "llama4": {
        "vision_config.hidden_size": (768, 1408),
        "vision_config.vision_output_dim": (7680, 4096),
    },
    "gemma3": {"vision_config.image_size": (224, 256)},
    "colmodernvbert": {"vlm_config.vision_config.image_size": (224, 256)},
    "dbrx": {"attn_config.clip_qkv": (None, math.inf), "attn_config.rope_theta": (None, 10_000.0)},
    "edgetam": {"vision_config.backbone_config.architecture": ("resnet50", "repvit_m1")},
    "deepseek_ocr2_vision": {"encoder_config.hidden_size": (4096, 896)},
    "qwen2_vl": {"vision_config.hidden_size": (3584, 8192)},
    "qwen3_vl": {"vision_config.out_hidden_size": (3584, 4096)},
    "granite_speech": {"projector_config.encoder_hidden_size": (1408, 1024)},
    "esm": {"vocab_size": (None, 33), "pad_token_id": (None, 1), "mask_token_id": (None, 32)},
    "t5gemma2_encoder": {"text_config.dropout_rate": (None, 0.0)},
    "vitmatte": {
        "fusion_hidden_sizes": ((256, 128, 64, 32), [256, 128, 64, 32]),
        "convstream_hidden_sizes": ((48, 96, 192), [48, 96, 192]),
        "hidden_size": (384, 768),
    },
}


def at(config, path):
    for name in path.split("."):
        config = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
    return config


@pytest.mark.parametrize("model_type", DETERMINED)
def test_a_setting_that_leaves_no_choice_is_set_and_named(model_type):
    stock, source = CONFIG_MAPPING[model_type](), resolve(f"hf:{model_type}")

    config, sentences = default_config(model_type)

    assert {path: (at(stock, path), at(config, path)) for path in DETERMINED[model_type]} == DETERMINED[
        model_type
    ]
    for path, (before, after) in DETERMINED[model_type].items():
        state = f"leaves {path} empty" if before is None else f"sets {path}={before!r}"
        (named,) = [each for each in sentences if f" {state}: {after!r} assumed, " in each]
        assert named in source.assumptions


@pytest.mark.parametrize("part", ["glm4v_moe_text", "glm4v_text", "glm_image_text", "qwen3_omni_moe_text"])
def test_the_sections_of_a_rotary_embedding_are_all_of_it(part):
    """No config has the sections: the rule says what the model's code says."""
    with torch.device("meta"):
        model = resolve(f"hf:{part}").factory()

    (rotary,) = [module for module in model.modules() if hasattr(module, "mrope_section")]
    assert sum(rotary.mrope_section) == rotary.inv_freq.numel()


@pytest.mark.parametrize(
    ("whole", "part"),
    [(name, "glm4v_text") for name in ("glm46v", "glm4v", "glmga")]
    + [("glm4v_moe", "glm4v_moe_text"), ("glm_image", "glm_image_text")],
)
def test_a_whole_type_has_the_same_rotary_embedding_as_its_part(whole, part):
    assert default_config(whole)[0].text_config.to_dict() == default_config(part)[0].to_dict()


def test_the_codes_of_an_image_tokenizer_are_the_last_tokens_before_that_of_the_image():
    config, _ = default_config("chameleon")

    codes = [token for name, token in config.vocabulary_map.items() if name != "<image>"]
    assert config.vocabulary_map["<image>"] == config.image_token_id == config.vocab_size - 1
    assert codes == list(
        range(config.image_token_id - config.vq_config.num_embeddings, config.image_token_id)
    )


@pytest.mark.parametrize("model_type", sorted(_RULES))
def test_transformers_has_no_default_of_its_own_for_any_of_these_settings(model_type):
    stock = CONFIG_MAPPING[model_type]()
    stock.image_token_id = 10_000

    assert len(set_what_is_determined(stock)) == len(_RULES[model_type])
    assert set_what_is_determined(stock) == ()


# hunyuan_vl needs axes for its positions too, t5gemma2_encoder another size of its images. The inputs of an
# image are not derived for glm_image. The trace of glm5_next takes ten minutes.
LEFT = ("glm5_next", "glm_image", "t5gemma2_encoder")
RUN = [name for name in sorted(_RULES) if not name.startswith("hunyuan_vl") and name not in LEFT]


@pytest.mark.parametrize("model_type", sampled(RUN, in_every_run=("vitmatte",)))
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_with_it_the_whole_model_exports_at_full_size(model_type):
    if model_type.startswith("edgetam"):
        pytest.importorskip("timm")
    report = fe.check(f"hf:{model_type}", target="cpu", dtype="bfloat16")

    codes = {found.code for found in report.diagnostics}
    assert not codes & {"FE102", "FE104"}
    assert report.is_clean or model_type == "qwen3_asr", str(report)  # which needs lengths in Python


def test_a_config_of_the_user_is_taken_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nemotron", "num_hidden_layers": 1}))
    source = resolve(f"hf:{tmp_path}")

    assert not any("assumed," in sentence for sentence in source.assumptions)
    with pytest.raises(TypeError, match="'int' and 'NoneType'"), torch.device("meta"):
        source.factory()


def test_the_horizon_of_a_forecast_is_assumed_and_named():
    source = resolve("hf:informer")

    assert default_config("informer")[0].context_length == 12
    assert (
        "informer has no default prediction_length, which the data decide: 12 assumed" in source.assumptions
    )


def test_before_it_is_trained_for_a_task_a_model_without_a_head_is_taken():
    source = resolve("hf:sapiens2")

    assert "hf:sapiens2 names no class: Sapiens2Model assumed" in source.assumptions
