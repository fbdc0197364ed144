"""Read how a program is called to generate tokens from the manifest of an untrusted archive."""

from __future__ import annotations

from typing import Any

from fakexport.documents import (
    CALLS,
    CallRecord,
    DocumentError,
    GenerationDefaults,
    StateTensor,
    boolean,
    decimal,
    integer,
    items,
    one_of,
    optional,
    record,
    text,
)

_NAME = 4096
_MOST_STATE = 100_000
_MOST_TOKENS = 1_000_000


def call_record(value: Any) -> CallRecord:
    """Return the record that `encode_manifest` wrote.

    Raises:
        DocumentError: a missing or unknown field, a wrong type, a name twice.
    """
    readers = {
        "workload": one_of(CALLS, "call of generation"),
        "tokens": _name,
        "logits": _name,
        "prompt": _optional_name,
        "mask": _optional_name,
        "positions": _optional_name,
        "start": _optional_name,
        "state": lambda found: tuple(items(found, _state, _MOST_STATE)),
        "capacity": _optional_count,
        "defaults": _defaults,
    }
    fields = record(value, readers)
    try:
        return CallRecord(**fields)
    except ValueError as error:
        raise DocumentError(str(error)) from None


def _state(value: Any) -> StateTensor:
    return StateTensor(**record(value, {"name": _name, "input": _optional_name, "output": _name}))


def _defaults(value: Any) -> GenerationDefaults:
    readers = {
        "eos": _tokens,
        "pad": _optional_count,
        "decoder_start": _optional_count,
        "longest": _optional_count,
        "forced_first": _optional_count,
        "forced_last": _optional_count,
        "suppressed": _tokens,
        "suppressed_first": _tokens,
        "not_applied": lambda found: tuple(items(found, _name, 100)),
        "bad_words": lambda found: tuple(items(found, _tokens, _MOST_TOKENS)),
        "repetition_penalty": decimal,
        "no_repeat_ngram_size": _count,
        "least": _count,
        "least_new": _count,
        "is_drawn": boolean,
        "temperature": _optional_number,
        "top_k": _optional_count,
        "top_p": _optional_number,
        "own_generate": _name,
    }
    fields = record(value, readers)
    try:
        return GenerationDefaults(**fields)
    except ValueError as error:
        raise DocumentError(str(error)) from None


def _name(value: Any) -> str:
    return text(value, _NAME)


def _optional_name(value: Any) -> str | None:
    return optional(value, _name)


def _count(value: Any) -> int:
    return integer(value, 0)


def _optional_count(value: Any) -> int | None:
    return optional(value, _count)


def _optional_number(value: Any) -> float | None:
    return optional(value, decimal)


def _tokens(value: Any) -> tuple[int, ...]:
    return tuple(items(value, _count, _MOST_TOKENS))
