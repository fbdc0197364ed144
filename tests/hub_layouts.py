"""Repositories as people publish them: configs and headers in the layouts that are on the hub, made small."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from tests.hub_server import Entries, Weights, sharded

_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int64: "I64"}

_LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT = {**_LLAMA, "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64}
_BERT = {**_LLAMA, "vocab_size": 96, "max_position_embeddings": 64}
_VISION = {**_LLAMA, "image_size": 16, "patch_size": 8}
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Layout:
    """One repository.

    Args:
        config: Its `config.json`; None: it has none.
        files: Further files.
        folder: Where in the repository they are.
        class_name: The class that is built; None: the source is refused.
        refusal: What the message of the source says.
        quantization: What the source says about quantization that is not in the model.
        dtype: The dtype that the model is built in.
        codes: The findings of `verify-weights` for the repository and itself; None: it is refused.
        weights_refusal: What the message says then.
    """

    config: Mapping[str, Any] | None
    files: Mapping[str, bytes | Weights]
    folder: str = ""
    class_name: str | None = None
    refusal: str = ""
    quantization: str | None = None
    dtype: torch.dtype | None = torch.bfloat16
    codes: frozenset[str] | None = field(default_factory=frozenset)
    weights_refusal: str = ""


def config_of(class_name: str, model_type: str, /, **settings: Any) -> dict[str, Any]:
    return {"architectures": [class_name], "model_type": model_type, "dtype": "bfloat16", **settings}


@cache
def _entries(settings: str, kind: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What `save_pretrained` writes for a config, by transformers' own tables, from shapes alone."""
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    fields = json.loads(settings)
    fields.pop("quantization_config", None)
    fields.pop("auto_map", None)
    model_class = getattr(transformers, fields["architectures"][0])
    with torch.device("meta"):
        model = model_class._from_config(transformers.AutoConfig.for_model(**fields))
    state = dict(model.state_dict())
    for tied in model.all_tied_weights_keys:
        state.pop(tied, None)
    written = revert_weight_conversion(model, state)
    return {name: (kind, tuple(tensor.shape)) for name, tensor in written.items()}


def entries_of(config: Mapping[str, Any], kind: str = "BF16") -> dict[str, tuple[str, tuple[int, ...]]]:
    return dict(_entries(json.dumps(config), kind))


def replaced(
    entries: Entries, change: Callable[[str, tuple[int, ...]], Mapping[str, tuple[str, tuple[int, ...]]]]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The entries with the weight of each linear layer in the form that a method stores."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (kind, shape) in entries.items():
        is_linear = name.endswith(".weight") and name.split(".")[-2] in _LINEAR
        found.update(change(name.removesuffix("weight"), shape) if is_linear else {name: (kind, shape)})
    return found


def _gptq(prefix: str, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    out, wide = shape
    return {
        f"{prefix}qweight": ("I32", (wide // 8, out)),
        f"{prefix}qzeros": ("I32", (1, out // 8)),
        f"{prefix}scales": ("F16", (1, out)),
        f"{prefix}g_idx": ("I32", (wide,)),
    }


def _awq(prefix: str, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    out, wide = shape
    return {
        f"{prefix}qweight": ("I32", (wide, out // 8)),
        f"{prefix}qzeros": ("I32", (1, out // 8)),
        f"{prefix}scales": ("F16", (1, out)),
    }


def _fp8(prefix: str, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {f"{prefix}weight": ("F8_E4M3", shape), f"{prefix}weight_scale_inv": ("F32", (1, 1))}


def _bnb(prefix: str, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        f"{prefix}weight": ("U8", (shape[0] * shape[1] // 2, 1)),
        f"{prefix}weight.absmax": ("F32", (shape[0],)),
        f"{prefix}weight.quant_state.bitsandbytes__nf4": ("U8", (96,)),
    }


def _mlx(prefix: str, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    out, wide = shape
    return {
        f"{prefix}weight": ("U32", (out, wide // 8)),
        f"{prefix}scales": ("BF16", (out, 1)),
        f"{prefix}biases": ("BF16", (out, 1)),
    }


def _single(entries: Entries) -> dict[str, bytes | Weights]:
    return {"model.safetensors": Weights.of(entries)}


def _old_gpt2(entries: Entries) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Without the prefix, and with the masks that transformers once stored."""
    masks = {f"h.{layer}.attn.bias": ("F32", (1, 1, 64, 64)) for layer in range(2)}
    return {name.removeprefix("transformer."): entry for name, entry in entries.items()} | masks


def _old_bert(entries: Entries) -> dict[str, tuple[str, tuple[int, ...]]]:
    """With the names that come from TensorFlow, and positions that are a buffer."""
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): entry
        for name, entry in entries.items()
    }
    return old | {"bert.embeddings.position_ids": ("I64", (1, 64))}


def layouts() -> Iterator[tuple[str, Layout]]:
    """All layouts by name."""
    yield from _plain()
    yield from _renamed()
    yield from _quantized()
    yield from _refused()


def _plain() -> Iterator[tuple[str, Layout]]:
    llama = config_of("LlamaForCausalLM", "llama", **_TEXT, tie_word_embeddings=False)
    tied = config_of("LlamaForCausalLM", "llama", **_TEXT, tie_word_embeddings=True)
    qwen = config_of("Qwen2ForCausalLM", "qwen2", **_TEXT, tie_word_embeddings=False)
    gemma = config_of("Gemma2ForCausalLM", "gemma2", **_TEXT, head_dim=8)
    bert = config_of("BertForSequenceClassification", "bert", **_BERT)
    vit = config_of("ViTForImageClassification", "vit", **_VISION, dtype="float32")
    audio = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
    audio |= {"decoder_attention_heads": 4, "vocab_size": 96, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    whisper = config_of(
        "WhisperForConditionalGeneration", "whisper", **audio, max_source_positions=32, pad_token_id=1
    )
    clip = config_of("CLIPTextModel", "clip_text_model", **_BERT)
    yield "single", Layout(llama, _single(entries_of(llama)), class_name="LlamaForCausalLM")
    yield "tied", Layout(tied, _single(entries_of(tied)), class_name="LlamaForCausalLM")
    both = {**entries_of(tied), "lm_head.weight": ("BF16", (96, 32))}
    yield (
        "tied, both stored",
        Layout(tied, _single(both), class_name="LlamaForCausalLM", codes=frozenset({"FE705"})),
    )
    yield "sharded", Layout(qwen, sharded(entries_of(qwen), 3), class_name="Qwen2ForCausalLM")
    yield (
        "sharded, wrong total size",
        Layout(gemma, sharded(entries_of(gemma), 2, total_size=1), class_name="Gemma2ForCausalLM"),
    )
    yield "encoder", Layout(bert, _single(entries_of(bert)), class_name="BertForSequenceClassification")
    yield (
        "vision",
        Layout(
            vit,
            _single(entries_of(vit, "F32")),
            class_name="ViTForImageClassification",
            dtype=torch.float32,
        ),
    )
    yield "audio", Layout(whisper, _single(entries_of(whisper)), class_name="WhisperForConditionalGeneration")
    yield (
        "in a folder",
        Layout(clip, _single(entries_of(clip)), folder="text_encoder", class_name="CLIPTextModel"),
    )
    other = {"diffusion_model.safetensors": Weights.of(entries_of(llama))}
    yield "another file name", Layout(llama, other, class_name="LlamaForCausalLM")
    silent = {key: value for key, value in llama.items() if key != "dtype"}
    yield "no dtype", Layout(silent, _single(entries_of(llama)), class_name="LlamaForCausalLM")
    single = {**llama, "dtype": "float32"}
    yield (
        "another dtype than its config",
        Layout(
            single,
            _single(entries_of(llama)),
            class_name="LlamaForCausalLM",
            dtype=torch.float32,
            codes=frozenset({"FE703"}),
        ),
    )


def _renamed() -> Iterator[tuple[str, Layout]]:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 64}
    gpt2 = config_of("GPT2LMHeadModel", "gpt2", **sizes)
    bert = config_of("BertForMaskedLM", "bert", **_BERT)
    mixtral = config_of("MixtralForCausalLM", "mixtral", **_TEXT, num_local_experts=4)
    vision = {"model_type": "clip_vision_model", **_VISION, "projection_dim": 32}
    text = {"model_type": "llama", **_TEXT, "vocab_size": 98}
    llava = config_of(
        "LlavaForConditionalGeneration",
        "llava",
        vision_config=vision,
        text_config=text,
        image_token_index=97,
        vision_feature_layer=-1,
    )
    harmless = frozenset({"FE704"})
    yield (
        "gpt2 without its prefix",
        Layout(gpt2, _single(_old_gpt2(entries_of(gpt2))), class_name="GPT2LMHeadModel", codes=harmless),
    )
    yield (
        "bert of TensorFlow",
        Layout(bert, _single(_old_bert(entries_of(bert))), class_name="BertForMaskedLM", codes=harmless),
    )
    yield (
        "experts one by one",
        Layout(mixtral, sharded(entries_of(mixtral), 4), class_name="MixtralForCausalLM"),
    )
    yield (
        "vision and language",
        Layout(llava, sharded(entries_of(llava), 2), class_name="LlavaForConditionalGeneration"),
    )


def _quantized() -> Iterator[tuple[str, Layout]]:
    llama = config_of("LlamaForCausalLM", "llama", **_TEXT, tie_word_embeddings=False)
    plain = entries_of(llama)
    missing = frozenset({"FE701", "FE704"})
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    experts |= {
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
    }
    heads = {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": 8}
    deepseek = config_of("DeepseekV3ForCausalLM", "deepseek_v3", **{**_TEXT, **experts, **heads})
    own_code = {"AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}

    def quantized(settings: dict[str, Any], found: Entries, name: str, codes: frozenset[str]) -> Layout:
        config = {**llama, "quantization_config": settings}
        return Layout(config, _single(found), class_name="LlamaForCausalLM", quantization=name, codes=codes)

    yield (
        "fp8 with code of its own",
        Layout(
            {**deepseek, "quantization_config": fp8, "auto_map": own_code},
            sharded(replaced(entries_of(deepseek), _fp8), 2),
            class_name="DeepseekV3ForCausalLM",
            quantization="fp8",
            codes=frozenset({"FE703", "FE704"}),
        ),
    )
    settings: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    yield "gptq", quantized(settings, replaced(plain, _gptq), "gptq", missing)
    settings = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    yield "awq", quantized(settings, replaced(plain, _awq), "awq", missing)
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    yield (
        "bitsandbytes",
        quantized(settings, replaced(plain, _bnb), "bitsandbytes", frozenset({"FE702", "FE704"})),
    )
    silent = {"quantize_config.json": b'{"bits": 4}', **_single(replaced(plain, _gptq))}
    yield (
        "gptq that its config does not say",
        Layout(llama, silent, class_name="LlamaForCausalLM", quantization="I32", codes=missing),
    )
    yield (
        "mlx",
        Layout(
            {**llama, "quantization": {"bits": 4, "group_size": 64}},
            _single(replaced(plain, _mlx)),
            class_name="LlamaForCausalLM",
            quantization="U32",
            codes=frozenset({"FE702", "FE704"}),
        ),
    )
    sizes = {
        **_TEXT,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 8,
        "intermediate_size": 32,
    }
    oss = config_of("GptOssForCausalLM", "gpt_oss", **sizes)
    packed: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (kind, shape) in entries_of(oss).items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            count, wide, out = shape
            packed[f"{name}_blocks"] = ("U8", (count, out, wide // 32, 16))
            packed[f"{name}_scales"] = ("U8", (count, out, wide // 32))
        else:
            packed[name] = (kind, shape)
    yield (
        "mxfp4",
        Layout(
            {**oss, "quantization_config": {"quant_method": "mxfp4"}},
            sharded(packed, 3),
            class_name="GptOssForCausalLM",
            quantization="mxfp4",
        ),
    )


def _refused() -> Iterator[tuple[str, Layout]]:
    llama = config_of("LlamaForCausalLM", "llama", **_TEXT, tie_word_embeddings=False)
    plain = entries_of(llama)
    own_type = {"model_type": "own_type", "architectures": ["OwnForCausalLM"], **_TEXT}
    own_type["auto_map"] = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.Own"}
    own_class = {**llama, "architectures": ["OwnForCausalLM"]}
    own_class["auto_map"] = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    absent = sharded(plain, 3)
    del absent["model-00002-of-00003.safetensors"]
    yield (
        "only .bin",
        Layout(
            llama,
            {"pytorch_model.bin": b"PK"},
            class_name="LlamaForCausalLM",
            codes=None,
            weights_refusal="pytorch_model.bin",
        ),
    )
    yield (
        "missing shard",
        Layout(
            llama,
            absent,
            class_name="LlamaForCausalLM",
            codes=None,
            weights_refusal="the shard 'model-00002-of-00003.safetensors' is missing",
        ),
    )
    yield (
        "a type of its own",
        Layout(
            own_type, _single(plain), refusal="auto_map refers to configuration_own.OwnConfig", codes=None
        ),
    )
    yield (
        "a class of its own",
        Layout(
            own_class, _single(plain), refusal="auto_map refers to modeling_own.OwnForCausalLM", codes=None
        ),
    )
    yield (
        "a class that transformers lacks",
        Layout(
            {**llama, "architectures": ["LlamaForCausalLMEagle3"]},
            _single(plain),
            refusal="transformers has no class LlamaForCausalLMEagle3",
            codes=None,
        ),
    )
    adapter = {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": Weights.of({"a.weight": ("F32", (2,))}),
    }
    yield "adapter", Layout(None, adapter, refusal="has no config.json; it is a PEFT adapter", codes=None)
    yield (
        "pipeline of diffusers",
        Layout(None, {"model_index.json": b"{}"}, refusal="it is a pipeline of diffusers", codes=None),
    )
    yield "gguf", Layout(None, {"m-Q4_K_M.gguf": b"GGUF"}, refusal="its weights are GGUF files", codes=None)
