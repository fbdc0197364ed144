"""Default configs of transformers with which the type's own model cannot be built or does not run.

What leaves no choice is set: what transformers documents for a setting that is empty, what another setting of
the same config determines, and which tokens of a vocabulary stand for what, where the model is the same with
any. Three are a choice: the horizon of a forecast, the axes of HunYuan-VL's positions, and images that are
larger than by default, which are the smallest of which the model can make its tokens.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

__all__ = ["constructor_settings", "set_what_is_determined"]


@dataclass(frozen=True)
class _Determined:
    """A setting whose default does not work, and which value does.

    Args:
        path: Name of the setting, with dots for configs inside of configs.
        value: Returns the value, given the whole config.
        reason: Why it is this value, as a clause.
    """

    path: str
    value: Callable[[Any], Any]
    reason: str


def set_what_is_determined(config: Any) -> tuple[str, ...]:
    """Set what a default config leaves open or contradicts, where only one value is possible.

    Args:
        config: A default config, with placeholder tokens; changed in place.
    Returns:
        A sentence for each setting that was changed.
    """
    sentences = []
    for rule in _RULES.get(config.model_type, ()):
        part, _, name = rule.path.rpartition(".")
        owner = _at(config, part)
        before, value = _setting(owner, name), rule.value(config)
        if before == value and type(before) is type(value):
            continue  # Another version of transformers has a default that works.
        if isinstance(owner, dict):
            owner[name] = value
        else:
            setattr(owner, name, value)
        state = f"leaves {rule.path} empty" if before is None else f"sets {rule.path}={_short(before)}"
        sentences.append(
            f"{config.model_type}'s default configuration {state}: {_short(value)} assumed, {rule.reason}"
        )
    return tuple(sentences)


def constructor_settings(model_type: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings without which a type has no default config, and a sentence for each.

    Args:
        model_type: A key of `transformers.CONFIG_MAPPING`.
    """
    settings = _REQUIRED.get(model_type, {})
    return dict(settings), tuple(
        f"{model_type} has no default {name}, which the data decide: {value} assumed"
        for name, value in settings.items()
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]} ..."


def _at(config: Any, path: str) -> Any:
    """Return a setting, or the config itself for no path."""
    for name in filter(None, path.split(".")):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


def _setting(owner: Any, name: str) -> Any:
    """Return a setting of a config, or of a dict in it; None where it is not set."""
    return owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)


def _as_wide_as(path: str, other: str, what: str) -> _Determined:
    """Return that a part makes features of the width that the part which takes them has."""
    return _Determined(path, lambda config: _at(config, other), f"the width of {what} ({other})")


def _head_dim(part: str = "") -> _Determined:
    def value(config: Any) -> int:
        owner = _at(config, part)
        return int(owner.hidden_size // owner.num_attention_heads)

    return _Determined(
        f"{part}head_dim", value, "hidden_size / num_attention_heads, what transformers documents for it"
    )


def _rotated_share(section: tuple[int, ...], part: str = "") -> _Determined:
    """Return how much of each head is rotated: twice as much as the sections of its three positions.

    Args:
        section: `mrope_section` of a model whose config has none.
        part: Path of the config, which has no share of its own, with a dot at its end.
    """

    def value(config: Any) -> float:
        owner = _at(config, part.rstrip("."))
        return float(2 * sum(section) * owner.num_attention_heads / owner.hidden_size)

    path = f"{part}rope_parameters.partial_rotary_factor"
    return _Determined(path, value, _of_sections(section, "what is rotated of a head"))


def _rotated_head(section: tuple[int, ...], part: str = "") -> _Determined:
    """Return the size of a head of which the sections of its three positions are half of what is rotated."""

    def value(config: Any) -> int:
        share = _at(config, f"{part}rope_parameters").get("partial_rotary_factor", 1)
        size: int = round(2 * sum(section) / share)
        return size

    return _Determined(f"{part}head_dim", value, _of_sections(section, "what is rotated of it"))


def _axes(part: str = "") -> _Determined:
    """Return the parts of a rotary embedding with four axes, whose lengths no default tells."""

    def value(config: Any) -> list[int]:
        return [int(_at(config, f"{part}head_dim")) // 8] * 4

    return _Determined(
        f"{part}rope_parameters.mrope_section",
        value,
        "equal parts of half a head for each of the four axes, as tencent/HunyuanOCR has them",
    )


def _merged_width(part: str = "") -> _Determined:
    """Return the width of a tower that merges squares of patches, of what its last layers take (Llama 4)."""

    def value(config: Any) -> int:
        owner = _at(config, part.rstrip("."))
        width: int = round(owner.intermediate_size * owner.pixel_shuffle_ratio**2)
        return width

    return _Determined(f"{part}hidden_size", value, "intermediate_size * pixel_shuffle_ratio ** 2")


def _larger_image(name: str, divisor: Callable[[Any], int], part: str = "") -> _Determined:
    """Return the size of the smallest image, from the default on, that can be divided into tokens.

    Args:
        name: The setting that says into how many, for the reason.
        divisor: Returns what the number of patches along a side must be a multiple of, given the config that
            has the setting.
        part: Path of that config, with a dot at its end.
    """

    def value(config: Any) -> int:
        owner = _at(config, part.rstrip("."))
        vision, step = owner.vision_config, divisor(owner)
        size: int = vision.patch_size * step * math.ceil(vision.image_size / (vision.patch_size * step))
        return size

    reason = f"the smallest from there on of which {name} can be made"
    return _Determined(f"{part}vision_config.image_size", value, reason)


def _pooled(part: str = "") -> tuple[_Determined, ...]:
    """Return the image of a model that pools squares of patches to a number of tokens (Gemma 3)."""
    return (_larger_image("mm_tokens_per_image", lambda owner: math.isqrt(owner.mm_tokens_per_image), part),)


def _shuffled(part: str = "") -> tuple[_Determined, ...]:
    """Return the image of a model that makes one token of each square of patches (ModernVBERT)."""
    squares = "squares of pixel_shuffle_factor patches"
    return (_larger_image(squares, lambda owner: int(owner.pixel_shuffle_factor), part),)


def _of_sections(section: tuple[int, ...], of: str) -> str:
    return f"since the model's mrope_section, {' + '.join(map(str, section))}, is half of {of}"


def _from_vocabulary(name: str, value: Callable[[tuple[str, ...]], int]) -> _Determined:
    """Return a setting that the vocabulary determines which transformers has for ESM."""

    def of(config: Any) -> int:
        module = importlib.import_module(type(config).__module__)
        return value(tuple(module.get_default_vocab_list()))

    return _Determined(name, of, "of transformers' get_default_vocab_list")


def _in_whole(path: str, whole: str, part: str) -> _Determined:
    """Return a setting that a part does not declare, and that the type which is made of it sets in it."""
    name = path.rpartition(".")[2]
    return _Determined(
        path, lambda config: _at(_default(whole), f"{part}.{name}"), f"what hf:{whole} sets in its {part}"
    )


@cache
def _default(model_type: str) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]()


def _image_vocabulary(names: Callable[[Any], list[str]]) -> _Determined:
    """Return a map of the tokens that stand for images, which only a tokenizer has: the last ones of all.

    The model is the same with any: it looks up there which token a code of the image tokenizer is.

    Args:
        names: Returns the names of the tokens, given the config; `<image>` is another one.
    """

    def value(config: Any) -> dict[str, int]:
        found = names(config)
        first = config.image_token_id - len(found)
        return {"<image>": config.image_token_id} | {name: first + i for i, name in enumerate(found)}

    return _Determined("vocabulary_map", value, "only a tokenizer tells it; the model is the same with any")


def _chameleon_tokens(config: Any) -> list[str]:
    letters = str.maketrans("0123456789", "ABCDEFGHIJ")
    codes = (str(code).translate(letters) for code in range(config.vq_config.num_embeddings))
    return [f"IMGIMG{code}Z" for code in codes]


def _emu3_tokens(config: Any) -> list[str]:
    codes = range(config.vq_config.codebook_size)
    return ["<|extra_200|>", *(f"<|visual token {code:06}|>" for code in codes)]


def _listed(name: str) -> _Determined:
    return _Determined(name, lambda config: list(getattr(config, name)), "a list, to which the model adds")


def _misspelled(part: str) -> _Determined:
    """Return the name of a timm model that the default config has under `archirecture` (EdgeTAM)."""

    def value(config: Any) -> str:
        backbone = _at(config, f"{part}backbone_config")
        return str(getattr(backbone, "archirecture", backbone.architecture))

    return _Determined(
        f"{part}backbone_config.architecture", value, "which the default sets as `archirecture`, misspelled"
    )


_TEXT = "text_config.hidden_size"
_TOWER = (_as_wide_as("vision_config.out_hidden_size", _TEXT, "the language model"),)
_START_OF_IMAGES = (
    _Determined(
        "vision_start_token_id",
        lambda config: _at(_default("qwen2_vl"), "vision_start_token_id"),
        "the token of hf:qwen2_vl, with whose vocabulary it shares the token of an image",
    ),
)
_SPEECH = (
    _as_wide_as("projector_config.encoder_hidden_size", "encoder_config.hidden_dim", "the speech encoder"),
)
_KEY_VALUE_HEADS = _Determined(
    "num_key_value_heads",
    lambda config: config.num_attention_heads,
    "num_attention_heads, what transformers documents for it",
)

# The sections with which models divide a rotary embedding whose config does not say.
_GLM_SECTION = (8, 12, 12)
_QWEN3_SECTION = (24, 20, 20)
_GLM_ROPE = (_rotated_share(_GLM_SECTION, "text_config."),)

# model type -> what its default config leaves no choice in
_RULES: Mapping[str, tuple[_Determined, ...]] = MappingProxyType(
    {
        "chameleon": (_image_vocabulary(_chameleon_tokens),),
        "colmodernvbert": _shuffled("vlm_config."),
        "cosmos3_omni": _TOWER,
        "dbrx": (
            _Determined(
                "attn_config.clip_qkv", lambda config: math.inf, "which clips nothing, as documented"
            ),
            _Determined(
                "attn_config.rope_theta",
                lambda config: config.rope_parameters["rope_theta"],
                "that of rope_parameters, which alone the model computes with",
            ),
        ),
        "deepseek_ocr2_vision": (
            _Determined(
                "encoder_config.hidden_size",
                lambda config: config.sam_config.downsample_channels[-1],
                "the width of what SAM makes (sam_config.downsample_channels)",
            ),
        ),
        "edgetam": (_misspelled("vision_config."),),
        "edgetam_vision_model": (_misspelled(""),),
        "emu3": (_image_vocabulary(_emu3_tokens),),
        "esm": (
            _from_vocabulary("vocab_size", len),
            _from_vocabulary("pad_token_id", lambda tokens: tokens.index("<pad>")),
            _from_vocabulary("mask_token_id", lambda tokens: tokens.index("<mask>")),
        ),
        "exaone4_5": _TOWER,
        "gemma3": _pooled(),
        "glm46v": _GLM_ROPE,
        "glm4v": _GLM_ROPE,
        "glm4v_moe": (_rotated_head(_GLM_SECTION, "text_config."),),
        "glm4v_moe_text": (_rotated_head(_GLM_SECTION),),
        "glm4v_text": (_rotated_share(_GLM_SECTION),),
        "glm5_next": _TOWER,
        "glm_image": _GLM_ROPE,
        "glm_image_text": (_rotated_share(_GLM_SECTION),),
        "glm_ocr": _TOWER,
        "glmga": _GLM_ROPE,
        "granite_speech": _SPEECH,
        "granite_speech_plus": _SPEECH,
        "hunyuan_v1_dense": (_head_dim(),),
        "hunyuan_v1_moe": (_head_dim(),),
        "hunyuan_vl": (_head_dim("text_config."), _axes("text_config.")),
        "hunyuan_vl_text": (_head_dim(), _axes()),
        "llama4": (
            _merged_width("vision_config."),
            _as_wide_as(
                "vision_config.vision_output_dim", "vision_config.projector_output_dim", "the vision tower"
            ),
        ),
        "llama4_vision_model": (_merged_width(),),
        "ministral": (_head_dim(),),
        "molmo2": (_as_wide_as("adapter_config.text_hidden_size", _TEXT, "the language model"),),
        "modernvbert": _shuffled(),
        "moonshine_streaming": (_KEY_VALUE_HEADS,),
        "nemotron": (_KEY_VALUE_HEADS,),
        "ovis2": (_as_wide_as("hidden_size", _TEXT, "the language model"),),
        "pix2struct_text_model": (_in_whole("initializer_range", "pix2struct", "text_config"),),
        "qwen2_5_omni_thinker": _START_OF_IMAGES,
        "qwen2_5_vl": _TOWER,
        "qwen2_vl": (_as_wide_as("vision_config.hidden_size", _TEXT, "the language model"),),
        "qwen3_5": _TOWER,
        "qwen3_5_moe": _TOWER,
        "qwen3_asr": (_as_wide_as("audio_config.output_dim", _TEXT, "the language model"),),
        "qwen3_omni_moe_thinker": (
            *_START_OF_IMAGES,
            *_TOWER,
            _as_wide_as("audio_config.output_dim", _TEXT, "the language model"),
            _rotated_head(_QWEN3_SECTION, "text_config."),
        ),
        "qwen3_omni_moe_text": (_rotated_head(_QWEN3_SECTION),),
        "qwen3_vl": _TOWER,
        "qwen3_vl_moe": _TOWER,
        "shieldgemma2": _pooled(),
        "t5gemma2": _pooled("encoder."),
        "t5gemma2_decoder": (_in_whole("dropout_rate", "t5gemma2", "decoder"),),
        "t5gemma2_encoder": (_in_whole("text_config.dropout_rate", "t5gemma2", "encoder.text_config"),),
        "t5gemma2_text": (_in_whole("dropout_rate", "t5gemma2", "encoder.text_config"),),
        "ultravbert": _shuffled(),
        "uvdoc": (
            _Determined(
                "backbone_config.out_features",
                lambda config: list(config.backbone_config.stage_names[1:]),
                "all stages, of which the model takes one result each",
            ),
        ),
        "vitmatte": (
            _listed("fusion_hidden_sizes"),
            _listed("convstream_hidden_sizes"),
            _as_wide_as("hidden_size", "backbone_config.hidden_size", "the backbone"),
        ),
    }
)

# Time series are forecast as far as the data need; transformers has no default for it.
_HORIZON = MappingProxyType({"prediction_length": 12})
_REQUIRED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    dict.fromkeys(("autoformer", "informer", "time_series_transformer"), _HORIZON)
)
