"""What a published config says about its weights, in all the places where publishers write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model
from transformers import T5Config, T5ForConditionalGeneration

import fakexport as fe
from fakexport.models.sources import SourceError, resolve
from tests.hub_server import Weights, local_hub
from tests.unit.models.sources.tiny_configs import TEXT

LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **TEXT}
MODELOPT = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
}


def folder(path: Path, config: dict[str, Any], **files: Any) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (path / name.replace("__", ".")).write_bytes(data)
    return f"hf:{path}"


def test_the_quantization_of_modelopt_next_to_a_config_is_that_of_the_model(tmp_path):
    spec = folder(tmp_path, {**LLAMA, "dtype": "bfloat16"}, hf_quant_config__json=MODELOPT)

    source = resolve(spec)
    module = source.factory()

    assert source.quantization.method == "modelopt FP8"
    assert source.quantization.left_out(module) == "transformers has no quantization method 'modelopt'"


def test_a_named_config_has_its_quantization_under_the_same_name(tmp_path):
    folder(tmp_path, LLAMA, hf_quant_config__json=MODELOPT)
    (tmp_path / "config.json").rename(tmp_path / "org--llama_config.json")
    (tmp_path / "hf_quant_config.json").rename(tmp_path / "org--llama_hf_quant_config.json")

    assert resolve(f"hf:{tmp_path}/org--llama_config.json").quantization.method == "modelopt FP8"


@pytest.mark.parametrize(
    ("content", "method"),
    [
        ({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}, None),
        ({"quantization": {"quant_algo": "NVFP4"}}, "modelopt NVFP4"),
    ],
)
def test_a_quantized_cache_alone_is_no_quantized_model(tmp_path, content, method):
    source = resolve(folder(tmp_path, LLAMA, hf_quant_config__json=content))

    assert (source.quantization and source.quantization.method) == method


@pytest.mark.parametrize("content", [[], {}, {"quantization": 3}, {"quantization": {"quant_algo": 8}}, b"{"])
def test_a_file_that_is_not_of_modelopt_is_refused_in_one_line(tmp_path, content):
    with pytest.raises(SourceError) as caught:
        resolve(folder(tmp_path, LLAMA, hf_quant_config__json=content))

    assert str(caught.value).startswith(f"{tmp_path}/hf_quant_config.json cannot be read: ")
    assert "\n" not in str(caught.value)


def test_a_config_that_has_only_half_of_the_quantization_is_not_built_with_it(tmp_path):
    config = {**LLAMA, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    spec = folder(tmp_path, config, hf_quant_config__json={"quantization": {"quant_algo": "MIXED_PRECISION"}})

    source = resolve(spec)

    assert source.quantization.method == "modelopt MIXED_PRECISION"
    assert source.quantization.left_out(source.factory())


def test_a_config_that_its_user_dequantizes_stays_so(tmp_path):
    config = {**LLAMA, "quantization_config": {"quant_method": "fp8", "dequantize": True}}

    assert resolve(folder(tmp_path, config, hf_quant_config__json=MODELOPT)).quantization is None


def test_a_repository_of_the_hub_has_both_files(tmp_path):
    with local_hub(tmp_path) as hub:
        half = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
        for name, config in {"org/quantized": LLAMA, "org/half": half}.items():
            files = {"config.json": config, "hf_quant_config.json": MODELOPT}
            hub.add(name, files={file: json.dumps(content).encode() for file, content in files.items()})

            assert resolve(f"hf:{name}").quantization.method == "modelopt FP8"


def test_weights_in_the_folder_say_that_they_are_quantized(tmp_path):
    weights = Weights.of(
        {"model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (64, 32)), "norm.weight": ("BF16", (32,))}
    )
    spec = folder(tmp_path, {**LLAMA, "dtype": "float16"}, model__safetensors=weights.header)

    source = resolve(spec)

    assert source.quantization.method == "F8_E4M3"
    assert source.dtype is torch.float16
    assert "the config specifies float16, but the weights are bfloat16" in source.assumptions


def test_a_dtype_is_that_of_the_text_where_the_config_names_none(tmp_path):
    text = {**TEXT, "dtype": "bfloat16"}
    source = resolve(folder(tmp_path, {"model_type": "qwen3_vl", "text_config": text}))

    assert source.dtype is torch.bfloat16
    assert "the config specifies no dtype: using bfloat16 like its text_config" in source.assumptions


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_quantized_config_without_a_dtype_is_noted(tmp_path, dtype):
    """MiniMax-M2.5: its other weights would be float32 without a word."""
    config = {**LLAMA, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    source = resolve(folder(tmp_path, config if dtype is None else {**config, "dtype": dtype}))

    found = [note for note in source.assumptions if "specifies no dtype" in note]

    assert len(found) == (dtype is None)


def test_sizes_that_transformers_would_not_read_are_refused(tmp_path):
    """The config of liuhaotian/llava-v1.5-13b: with the text model's defaults it would be the 7B model."""
    with pytest.raises(SourceError, match=r"ignores hidden_size=5,120: .* text_config, which is missing"):
        resolve(folder(tmp_path, {"model_type": "llava", "hidden_size": 5120, "num_hidden_layers": 40}))


def test_sizes_that_a_class_moves_into_its_text_config_are_read(tmp_path):
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}

    assert resolve(folder(tmp_path, {"model_type": "qwen2_vl", **sizes})).kind == "transformers"


def test_an_unknown_type_with_a_known_class_is_read_as_that_class_when_asked(tmp_path):
    config = {**LLAMA, "model_type": "own_llama", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}
    spec = folder(tmp_path, config)

    with pytest.raises(SourceError, match="append :LlamaForCausalLM to the source to check that class"):
        resolve(spec)
    source = resolve(f"{spec}:LlamaForCausalLM")

    assert type(source.factory()).__name__ == "LlamaForCausalLM"
    assert (
        "the type 'own_llama' is unknown to transformers: reading the config as 'llama', as requested"
        in source.assumptions
    )


def test_an_unknown_type_without_a_known_class_says_whose_code_it_is(tmp_path):
    own = {"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}

    with pytest.raises(
        SourceError, match=r"auto_map refers to configuration_own\.OwnConfig.*write a factory"
    ):
        resolve(folder(tmp_path, {**own, "architectures": ["OwnForCausalLM"]}))


def test_code_of_the_repository_that_is_not_run_is_a_note(tmp_path):
    source = resolve(folder(tmp_path, {**LLAMA, "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}))

    assert any("auto_map" in sentence for sentence in source.assumptions)


T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "feed_forward_proj": "gated-gelu",
    "vocab_size": 100,
    **{"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
}


@pytest.mark.parametrize(("is_tied", "elements"), [(True, 0), (False, 100 * 16), (None, 0)])
def test_the_output_embedding_of_t5_is_tied_unless_the_config_unties_it(tmp_path, is_tied, elements):
    """T5 v1.1, flan-t5 and mT5 have one of their own, although T5Config always ties it."""
    config = {**T5, **({} if is_tied is None else {"tie_word_embeddings": is_tied})}
    shared = sum(each.numel() for each in T5ForConditionalGeneration(T5Config(**T5)).parameters())

    program = fe.export(folder(tmp_path, config))

    assert fe.summary(program).parameters.elements == shared + elements


def test_a_checkpoint_of_t5_with_an_output_embedding_gives_what_the_model_gives(tmp_path):
    torch.manual_seed(0)
    real = T5ForConditionalGeneration(T5Config(**T5, tie_word_embeddings=False)).eval()
    real.lm_head.weight = torch.nn.Parameter(torch.randn_like(real.lm_head.weight))
    spec = folder(tmp_path, {**T5, "tie_word_embeddings": False})
    save_model(real, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})

    program = fe.bind(fe.export(spec), tmp_path)

    args, kwargs = program.example_inputs
    inputs = {name: torch.ones_like(value) for name, value in kwargs.items()}
    assert not args
    torch.testing.assert_close(program.module()(**inputs)["logits"], real(**inputs).logits)


@pytest.mark.filterwarnings("ignore:The tensor attribute")
def test_longrope_is_right_at_both_sides_of_the_original_length(tmp_path):
    """As in Phi-3.5 and Phi-4-mini: `forward` keeps the frequencies of long texts in an attribute."""
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 2.1, 2.2, 2.3]}
    config = {
        "model_type": "phi3",
        **{"architectures": ["Phi3ForCausalLM"], "hidden_size": 32, "intermediate_size": 32},
        **{"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64},
        **{"max_position_embeddings": 256, "original_max_position_embeddings": 32, "pad_token_id": 0},
        "rope_scaling": {"type": "longrope", **factors},
    }
    spec = folder(tmp_path, config)
    torch.manual_seed(0)
    real = resolve(spec).factory()
    save_model(real, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})

    bound = fe.bind(fe.export(spec, dynamic_shapes="auto"), tmp_path)

    for length in (8, 33, 9):
        ids = torch.arange(2 * length).reshape(2, length) % 64
        found = bound.module()(input_ids=ids, attention_mask=torch.ones_like(ids))["logits"]
        torch.testing.assert_close(found, real(input_ids=ids, use_cache=False).logits)


def test_a_part_without_a_config_is_said_to_have_default_sizes(tmp_path):
    text = {**TEXT, "model_type": "llama"}
    config = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": text}

    without = resolve(folder(tmp_path / "without", config)).assumptions
    complete = resolve(
        folder(tmp_path / "with", {**config, "vision_config": {"model_type": "siglip_vision_model"}})
    )

    said = "the config has no vision_config: using the default sizes of transformers' CLIPVisionConfig"
    assert any(note.startswith(said) for note in without)
    assert not any("default sizes" in note for note in complete.assumptions)
    assert not any("default sizes" in note for note in resolve(folder(tmp_path / "text", LLAMA)).assumptions)


@pytest.mark.parametrize(("dtype", "is_plain"), [("BF16", True), ("F8_E4M3", False)])
def test_a_quantization_that_no_weight_of_the_folder_has_is_left_out(tmp_path, dtype, is_plain):
    config = {**LLAMA, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    weights = Weights.of(
        {"model.layers.0.mlp.up_proj.weight": (dtype, (64, 32)), "norm.weight": ("BF16", (32,))}
    )

    source = resolve(folder(tmp_path, config, model__safetensors=weights.header))
    reason = source.quantization.left_out(source.factory())

    assert ("none of the weights in the folder is quantized" in reason) == is_plain
