"""The small language of shape expressions and conditions, parsed as Python: a text is never evaluated."""

from __future__ import annotations

import ast
import re

from fakexport.documents import DocumentError

MAX_LENGTH = 20_000
MAX_TOKENS = 12_000

# Everything else in Python, comments and escapes included, has a character or a place that is refused here.
_TOKEN = re.compile(
    r"\s*(?:(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?![\w.])|[A-Za-z_]\w*|'[^'\"\\\x00-\x1f]*'"
    r"|,(?!\s*\))|\*\*|//|<<|>>|<=|>=|==|!=|[-+*/%()\[\]{}=.<>&|~^])",
    re.ASCII,
)


def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression, any part of which the caller may still have to refuse.

    Raises:
        DocumentError: the text has other characters than torch prints, or is too long or too deep.
    """
    if len(text) > MAX_LENGTH:
        raise DocumentError(f"an expression of {len(text)} characters; the limit is {MAX_LENGTH}")
    text = text.strip()
    position = count = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise DocumentError(f"{text[position : position + 20]!r} is not part of a shape expression")
        position, count = token.end(), count + 1
    if count > MAX_TOKENS:
        raise DocumentError(f"an expression of {count} parts; the limit is {MAX_TOKENS}")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise DocumentError(f"not an expression: {str(error).partition(' (<')[0][:80]}") from None
    except (RecursionError, MemoryError):
        raise DocumentError("an expression with too many levels") from None
