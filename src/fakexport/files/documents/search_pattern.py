"""Reject slow regular expressions in a file, such as the `target_modules` of a PEFT adapter."""

from __future__ import annotations

import re
import warnings
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from .document_error import DocumentError
from .typed_json import text

_MOST_CHARACTERS = 2000
_MOST_REPEATS = 4
_ITEMS = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)


def search_pattern(value: Any) -> str:
    """Return the value if it is a regular expression that Python matches in polynomial time.

    Only single characters and character classes may be repeated, at most four times without a limit. With a
    repeated group such as `(a+)+` or `(a|a)*`, the time can double with each character of the searched text.
    The patterns of peft and its users satisfy these rules.
    """
    pattern = text(value, _MOST_CHARACTERS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise DocumentError(f"not a regular expression: {error}") from None
    if _repeats(parsed) > _MOST_REPEATS:
        raise DocumentError(
            f"a regular expression with more than {_MOST_REPEATS} unlimited repeats can take too long to "
            "match"
        )
    return pattern


def _repeats(parsed: Any) -> int:
    """Count the unlimited repeats. Of several alternatives, only the one with the most repeats counts."""
    count = 0
    for code, argument in parsed:
        if code in _REPEATS:
            _, most, repeated = argument
            if most <= 1:
                count += _repeats(repeated)
            elif len(repeated) == 1 and repeated[0][0] in _ITEMS:
                count += 1
            else:
                raise DocumentError("a regular expression that repeats a group can take exponential time")
        elif code is codes.BRANCH:
            count += max(_repeats(branch) for branch in argument[1])
        elif code in (codes.GROUPREF, codes.GROUPREF_EXISTS):
            raise DocumentError("a regular expression that refers back to a group can take exponential time")
        else:
            count += sum(_repeats(part) for part in _parts(argument))
    return count


def _parts(argument: Any) -> list[Any]:
    """Return the subpatterns inside a group, an alternative or a look-around."""
    if isinstance(argument, parser.SubPattern):
        return [argument]
    if isinstance(argument, (tuple, list)):
        return [part for each in argument for part in _parts(each)]
    return []
