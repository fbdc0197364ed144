"""Color reports on terminals. Renderers return text without colors; this module colors the escaped text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TextIO

ColorChoice = Literal["auto", "always", "never"]

_choice: ContextVar[ColorChoice] = ContextVar("fakexport_color", default="auto")

_BOLD, _RED, _GREEN, _YELLOW, _BLUE, _CYAN = "1", "1;31", "1;32", "1;33", "1;34", "1;36"
# Pattern, and the color of the group `it` in each match.
_HIGHLIGHTS = (
    (r"^(?P<it>error(\[\w+\])?):", _RED),
    (r"^(?P<it>warning(\[\w+\])?):", _YELLOW),
    (r"^(?P<it>note(\[\w+\])?):", _CYAN),
    (r"^ *(?P<it>-->) ", _BLUE),
    (r"^ *\| +(?P<it>\^+)", _RED),
    (r"^ *= (?P<it>fix):", _GREEN),
    (r"^ *= (?P<it>note):", _CYAN),
    (r"^\S.*?  (?P<it>exports)  ", _GREEN),
    (r"^\S.*?  (?P<it>fails at \w+)  ", _RED),
    (r"^(?P<it>[\d,]+ of [\d,]+ targets? exports?;.*|[\d,]+ sources?: .*)$", _BOLD),
)
_PATTERNS = tuple((re.compile(pattern, re.MULTILINE), code) for pattern, code in _HIGHLIGHTS)


@contextmanager
def automatic_color() -> Iterator[None]:
    """Start a block with `--color auto`. At the end of the block, undo `choose_color`."""
    token = _choice.set("auto")
    try:
        yield
    finally:
        _choice.reset(token)


def choose_color(choice: ColorChoice) -> None:
    """Apply `--color` for the rest of the command."""
    _choice.set(choice)


def is_colored(stream: TextIO) -> bool:
    """Return whether text on this stream is colored.

    The first of these that is set decides: `--color`, NO_COLOR, FORCE_COLOR (https://no-color.org,
    https://force-color.org). If none is set, text is colored on a terminal that supports colors.
    """
    if _choice.get() != "auto":
        return _choice.get() == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()


def highlighted(text: str, stream: TextIO) -> str:
    """Return the text with its important parts in color if the stream is colored, otherwise unchanged."""
    if not is_colored(stream):
        return text
    for pattern, code in _PATTERNS:
        text = pattern.sub(lambda found, code=code: _colored(found, code), text)  # type: ignore[misc]
    return text


def _colored(found: re.Match[str], code: str) -> str:
    line, start = found[0], found.start()
    first, last = found.start("it") - start, found.end("it") - start
    return f"{line[:first]}\x1b[{code}m{line[first:last]}\x1b[0m{line[last:]}"
