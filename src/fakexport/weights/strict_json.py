"""JSON from files that nobody vouches for: with limits, and without room for two readings."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["StrictJsonError", "parse_object"]

MAX_DEPTH = 8
_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class StrictJsonError(ValueError):
    """Text that is no JSON object, or one that two readers might read in two ways."""


def parse_object(text: bytes) -> dict[str, Any]:
    """The JSON object that the text is.

    Args:
        text: UTF-8; its size is the caller's to limit, before it is read.
    Raises:
        StrictJsonError: not UTF-8, not JSON, not an object, nested more than eight deep, a key twice, an
            integer of more than 20 digits, NaN or Infinity.
    """
    _check_depth(text)
    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse_number,
            parse_int=_integer,
        )
    except StrictJsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise StrictJsonError(f"not JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(value, dict):
        raise StrictJsonError("not a JSON object")
    return value


def _check_depth(text: bytes) -> None:
    depth = 0
    for match in _BRACKET.finditer(text):
        first = match[0][:1]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        if depth > MAX_DEPTH:
            raise StrictJsonError(f"nested more than {MAX_DEPTH} deep")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise StrictJsonError(f"the key {key[:80]!r} stands there twice")
        found[key] = value
    return found


def _integer(text: str) -> int:
    if len(text) > 20:
        raise StrictJsonError(f"a number of {len(text)} digits")
    return int(text)


def _refuse_number(text: str) -> Any:
    raise StrictJsonError(f"{text} is no number of JSON")
