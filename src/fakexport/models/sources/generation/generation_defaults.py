"""Read the generation defaults from the configuration of a transformers model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import nn

from fakexport.files import read_file
from fakexport.files.documents import GenerationDefaults
from fakexport.models.sources.source_error import SourceError, first_line

GENERATION_CONFIG = "generation_config.json"
_MOST_BYTES = 1 << 20
_NOT_APPLIED: Mapping[str, float | None] = MappingProxyType(
    {
        **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
        **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale", "typical_p"), 1.0),
        **dict.fromkeys(("encoder_no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff"), 0),
        **dict.fromkeys(("token_healing", "remove_invalid_values"), False),
        **dict.fromkeys(
            (
                "exponential_decay_length_penalty",
                "sequence_bias",
                "stop_strings",
                "min_p",
                "top_h",
                "max_time",
            )
        ),
        **dict.fromkeys(("watermarking_config", "penalty_alpha", "dola_layers")),
        **dict.fromkeys(("constraints", "force_words_ids")),
    }
)
"""Settings that change the generated tokens, each with the value at which it has no effect."""

_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_sequence_length")


def generation_defaults(module: nn.Module) -> GenerationDefaults:
    """Read the settings in a model's generation config, or raise a `SourceError` if one is invalid."""
    try:
        return _defaults(module)
    except (TypeError, ValueError) as error:
        raise SourceError(
            f"the generation config of {type(module).__name__} cannot be read: {first_line(error)}"
        ) from error


def _defaults(module: nn.Module) -> GenerationDefaults:
    config: Any = module.config
    settings: Any = getattr(module, "generation_config", None)

    def setting(name: str) -> Any:
        return getattr(settings, name, None)

    eos = _tokens(setting("eos_token_id"))
    bad = _bad_words(setting("bad_words_ids"), eos)
    least_new = setting("min_new_tokens") or 0
    others = [
        name for name, neutral in _NOT_APPLIED.items() if setting(name) not in (None, neutral, bool(neutral))
    ]
    forced, first = _tokens(setting("forced_bos_token_id")), _tokens(setting("begin_suppress_tokens"))
    if setting("cache_implementation") == "quantized":  # Other caches do not change the values.
        others.append("cache_implementation")
    # Without an encoder, transformers forces this token only after a prompt of one token.
    if forced and not config.is_encoder_decoder:
        others, forced = [*others, "forced_bos_token_id"], ()
    if forced and first:  # transformers then suppresses tokens in the second step instead of the first.
        others, first = [*others, "begin_suppress_tokens"], ()
    return GenerationDefaults(
        eos=eos,
        pad=next(iter(_tokens(setting("pad_token_id"))), None),
        decoder_start=_decoder_start(setting, config),
        longest=_longest(config),
        forced_first=next(iter(forced), None),
        forced_last=min(_tokens(setting("forced_eos_token_id")), default=None),
        suppressed=tuple(
            dict.fromkeys((*_tokens(setting("suppress_tokens")), *(w[0] for w in bad if len(w) == 1)))
        ),
        suppressed_first=first,
        bad_words=tuple(word for word in bad if len(word) > 1),
        repetition_penalty=float(setting("repetition_penalty") or 1.0),
        no_repeat_ngram_size=int(setting("no_repeat_ngram_size") or 0),
        least=0 if least_new else int(setting("min_length") or 0),
        least_new=int(least_new),
        is_drawn=bool(setting("do_sample")),
        **_drawing(setting),
        not_applied=tuple(others),
        own_generate=type(module).__name__ if _has_own_generate(module) else "",
    )


def generation_config_of(folder: Path) -> Any:
    """Return the generation config in a folder, or None if the folder has none."""
    from transformers import GenerationConfig

    path = folder / GENERATION_CONFIG
    if not path.exists():
        return None
    try:
        return GenerationConfig.from_dict(json.loads(read_file(path, most_bytes=_MOST_BYTES)))
    except Exception as error:  # Invalid JSON, a file system error, or settings that transformers rejects.
        raise SourceError(f"{path} is not a valid generation config: {first_line(error)}") from error


def _tokens(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(token) for token in value) if isinstance(value, (list, tuple)) else (int(value),)


def _bad_words(words: Any, eos: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the token sequences that must not be generated. As in transformers, end tokens are allowed."""
    found = [_tokens(list(word)) for word in words or ()]
    return [word for word in found if word not in [(token,) for token in eos]]


def _has_own_generate(module: nn.Module) -> bool:
    """Return whether the class overrides `generate` or its sampling: scores then do not determine tokens."""
    from transformers.generation import GenerationMixin

    names = ("generate", "_sample", "_get_logits_processor")
    return any(
        getattr(type(module), name, None) not in (None, getattr(GenerationMixin, name)) for name in names
    )


def _drawing(setting: Callable[[str], Any]) -> dict[str, Any]:
    """Return the sampling settings. Values that have no effect become None."""
    temperature, top_k, top_p = setting("temperature"), setting("top_k"), setting("top_p")
    return {
        "temperature": None if temperature in (None, 0, 1) else float(temperature),
        "top_k": int(top_k) if top_k else None,
        "top_p": None if top_p is None or top_p >= 1 else float(top_p),
    }


def _decoder_start(setting: Any, config: Any) -> int | None:
    if not config.is_encoder_decoder:
        return None
    found = [token for name in ("decoder_start_token_id", "bos_token_id") for token in _tokens(setting(name))]
    return next(iter(found), None)


def _longest(config: Any) -> int | None:
    """Return the number of positions that the model supports, or None if it is unknown."""
    text = config.get_text_config(decoder=True)
    sizes = (getattr(text, name, None) for name in _POSITIONS)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)
