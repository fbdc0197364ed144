"""What a transformers model's configuration says about generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from fakexport.documents import GenerationDefaults
from fakexport.files import read_file
from fakexport.sources.source_error import SourceError, first_line

GENERATION_CONFIG = "generation_config.json"
_MOST_BYTES = 1 << 20
_NOT_APPLIED = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "guidance_scale": 1.0,
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
    "num_return_sequences": 1,
    "stop_strings": None,
    "token_healing": False,
    "watermarking_config": None,
    "remove_invalid_values": False,
    "penalty_alpha": None,
    "dola_layers": None,
    "constraints": None,
    "force_words_ids": None,
}
"Settings that change what greedy generation returns, with the value that changes nothing."

_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_sequence_length")


def generation_defaults(module: nn.Module) -> GenerationDefaults:
    """Return what the generation config of a model says.

    Args:
        module: A model of transformers. Its generation config is that of its config, or of the
            `generation_config.json` next to it.
    """
    config: Any = module.config
    settings: Any = getattr(module, "generation_config", None)

    def setting(name: str) -> Any:
        return getattr(settings, name, None)

    eos = _tokens(setting("eos_token_id"))
    bad, single = _single_words(setting("bad_words_ids"), eos)
    others = [
        name for name, neutral in _NOT_APPLIED.items() if setting(name) not in (None, neutral, bool(neutral))
    ]
    forced, first = _tokens(setting("forced_bos_token_id")), _tokens(setting("begin_suppress_tokens"))
    if setting("cache_implementation") == "quantized":  # All others hold the same numbers.
        others.append("cache_implementation")
    if forced and not config.is_encoder_decoder:  # Of a decoder alone, only prompts of one token have it.
        others, forced = [*others, "forced_bos_token_id"], ()
    if forced and first:  # They are those that are not the second token then.
        others, first = [*others, "begin_suppress_tokens"], ()
    return GenerationDefaults(
        eos=eos,
        pad=next(iter(_tokens(setting("pad_token_id"))), None),
        decoder_start=_decoder_start(setting, config),
        longest=_longest(config),
        forced_first=next(iter(forced), None),
        forced_last=min(_tokens(setting("forced_eos_token_id")), default=None),
        suppressed=tuple(dict.fromkeys((*_tokens(setting("suppress_tokens")), *bad))),
        suppressed_first=first,
        not_applied=(*others, *([] if single else ["bad_words_ids"])),
    )


def generation_config_of(folder: Path) -> Any:
    """Return the generation config of a folder; None if it has none.

    Raises:
        SourceError: it is not one.
    """
    from transformers import GenerationConfig

    path = folder / GENERATION_CONFIG
    if not path.exists():
        return None
    try:
        return GenerationConfig.from_dict(json.loads(read_file(path, most_bytes=_MOST_BYTES)))
    except Exception as error:  # JSON, the file system, and settings that transformers refuses
        raise SourceError(f"{path} is not a generation config: {first_line(error)}") from error


def _tokens(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(token) for token in value) if isinstance(value, (list, tuple)) else (int(value),)


def _single_words(words: Any, eos: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Return the tokens that are bad by themselves, and whether those are all.

    transformers never forbids a token that ends.
    """
    words = [word for word in words or () if word not in [[token] for token in eos]]
    alone = [int(word[0]) for word in words if len(word) == 1]
    return tuple(alone), len(alone) == len(words)


def _decoder_start(setting: Any, config: Any) -> int | None:
    if not config.is_encoder_decoder:
        return None
    found = [token for name in ("decoder_start_token_id", "bos_token_id") for token in _tokens(setting(name))]
    return next(iter(found), None)


def _longest(config: Any) -> int | None:
    """Return for how many tokens the model has positions; None if nothing says so."""
    text = config.get_text_config(decoder=True)
    sizes = (getattr(text, name, None) for name in _POSITIONS)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)
