"""The small language of shape expressions, read into a tree: a text is never evaluated.

Both ways in which torch prints them are read: `Mul(Integer(2), Symbol('s0', integer=True))` and `2*s0 + 1`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from fakexport.documents import DocumentError

__all__ = ["Binary", "Call", "Name", "Number", "Quoted", "Tokens", "Tree", "Unary", "parse_expression"]

MAX_LENGTH = 20_000
MAX_TOKENS = 12_000
MAX_DEPTH = 60

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|'(?P<quoted>[^'\"\\\x00-\x1f]*)'"
    r"|(?P<sign>\*\*|//|<<|>>|<=|>=|==|!=|[-+*/%()\[\],=.<>&|~^]))",
    re.ASCII,
)
_LEVELS = {"or": 1, "|": 1, "^": 2, "and": 3, "&": 3} | dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 5)
_LEVELS |= {"<<": 6, ">>": 6, "+": 7, "-": 7, "*": 8, "/": 8, "//": 8, "%": 8, "**": 10}
_PREFIXES = {"not": 4, "~": 9, "-": 9, "+": 9}
_WORDS = frozenset(("or", "and", "not"))


@dataclass(frozen=True, slots=True)
class Number:
    text: str


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Quoted:
    text: str


@dataclass(frozen=True, slots=True)
class Unary:
    sign: str
    operand: Tree


@dataclass(frozen=True, slots=True)
class Binary:
    sign: str
    left: Tree
    right: Tree


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    args: tuple[Tree, ...]
    options: tuple[tuple[str, Tree], ...]


Tree: TypeAlias = Number | Name | Quoted | Unary | Binary | Call


class Tokens:
    """The tokens of a text, and the position in them."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise DocumentError(f"an expression of {len(text)} characters; the limit is {MAX_LENGTH}")
        self._tokens: list[tuple[str, str]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise DocumentError(f"{text[position : position + 20]!r} is not part of a shape expression")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()
        if len(self._tokens) > MAX_TOKENS:
            raise DocumentError(f"an expression of {len(self._tokens)} parts; the limit is {MAX_TOKENS}")
        self._next = 0

    def peek(self) -> tuple[str, str]:
        """Kind and text of the next token; `("end", "")` after the last."""
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "")

    def take(self, kind: str = "", text: str = "") -> str:
        """Return the text of the next token, which must be of this kind or have this text if one is given."""
        found = self.peek()
        if (kind and found[0] != kind) or (text and found[1] != text) or found[0] == "end":
            raise DocumentError(f"expected {text or kind or 'more'} in an expression, got {found[1][:40]!r}")
        self._next += 1
        return found[1]

    def accept(self, sign: str) -> bool:
        """Take the next token if it is this sign."""
        if self.peek() != ("sign", sign):
            return False
        self._next += 1
        return True

    def finish(self) -> None:
        if self.peek()[0] != "end":
            raise DocumentError(f"{self.peek()[1][:40]!r} after the end of an expression")


def parse_expression(text: str) -> Tree:
    """Return the tree of an expression.

    Raises:
        DocumentError: the text is not of the language, or too long or too deep.
    """
    tokens = Tokens(text)
    tree = _Parser(tokens).expression(0, 0)
    tokens.finish()
    return tree


class _Parser:
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def expression(self, level: int, depth: int) -> Tree:
        """Return the next expression that binds at least as tightly as `level`."""
        if depth > MAX_DEPTH:
            raise DocumentError(f"an expression more than {MAX_DEPTH} levels deep")
        kind, text = self._tokens.peek()
        if text in _PREFIXES and kind in ("sign", "name"):
            self._tokens.take()
            left: Tree = Unary(text, self.expression(_PREFIXES[text], depth + 1))
        else:
            left = self._atom(depth)
        count = 0
        while True:
            kind, text = self._tokens.peek()
            binding = _LEVELS.get(text, 0) if kind in ("sign", "name") else 0
            if binding == 0 or binding < level:
                return left
            self._tokens.take()
            # A power binds to the right, everything else to the left.
            right = self.expression(binding if text == "**" else binding + 1, depth + 1)
            left = Binary(text, left, right)
            count += 1
            if count > 4 * MAX_DEPTH:
                raise DocumentError(f"more than {4 * MAX_DEPTH} operands in a row")

    def _atom(self, depth: int) -> Tree:
        tokens = self._tokens
        kind, text = tokens.peek()
        if kind == "number":
            return Number(tokens.take())
        if kind == "quoted":
            return Quoted(tokens.take())
        if kind == "name" and text not in _WORDS:
            tokens.take()
            return self._call(text, depth) if tokens.accept("(") else Name(text)
        tokens.take(text="(")
        inner = self.expression(0, depth + 1)
        tokens.take(text=")")
        return inner

    def _call(self, function: str, depth: int) -> Call:
        args: list[Tree] = []
        options: list[tuple[str, Tree]] = []
        while not self._tokens.accept(")"):
            if args or options:
                self._tokens.take(text=",")
            value = self.expression(0, depth + 1)
            if isinstance(value, Name) and self._tokens.accept("="):
                options.append((value.name, self.expression(0, depth + 1)))
            elif options:
                raise DocumentError("an argument after an option in an expression")
            else:
                args.append(value)
        return Call(function, tuple(args), tuple(options))
