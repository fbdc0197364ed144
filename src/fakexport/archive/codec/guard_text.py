"""The conditions on inputs that a program checks when it is called: Python text, which torch will execute.

Only texts in the language that torch prints are let through: sizes, strides and values of inputs, numbers,
arithmetic, comparisons, and a few functions of `math` and `torch`.
"""

from __future__ import annotations

import keyword
import re

from fakexport.documents import DocumentError

from .expression_text import MAX_DEPTH, Tokens

__all__ = ["checked_guard"]

_OPERATORS = frozenset(
    ["+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "&", "|", "^", "<<", ">>"]
)
_WORD_OPERATORS = frozenset(("and", "or"))
_FUNCTIONS = frozenset(("max", "min", "abs", "round", "IsNonOverlappingAndDenseIndicator"))
_FUNCTIONS_OF = {
    "math": frozenset(
        [
            "acos",
            "asin",
            "atan",
            "ceil",
            "cos",
            "cosh",
            "exp",
            "floor",
            "inf",
            "log",
            "log2",
            "nan",
            "sin",
            "sinh",
            "sqrt",
            "tan",
            "tanh",
            "trunc",
        ]
    ),
    "torch": frozenset(("sym_float", "sym_int", "_sym_sqrt", "sym_max", "sym_min", "sym_not", "sym_ite")),
}
_QUESTIONS = frozenset(("size", "stride", "storage_offset", "item"))
_ATTRIBUTES = frozenset(("shape",))
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_LARGEST_POWER = 16
# A key is copied into a string literal of the code that torch generates.
_KEY = re.compile(r"[A-Za-z0-9_.:/ -]*", re.ASCII)


def checked_guard(text: str) -> str:
    """Return the text, if it is a condition that torch could have printed.

    Raises:
        DocumentError: it is not; running it might do anything.
    """
    tokens = Tokens(text)
    _Reader(tokens).condition(0)
    tokens.finish()
    return text


class _Reader:
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._powers = 0

    def condition(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise DocumentError(f"a condition more than {MAX_DEPTH} levels deep")
        tokens = self._tokens
        was_power = False
        while True:
            while tokens.peek() in (("name", "not"), ("sign", "-"), ("sign", "+"), ("sign", "~")):
                tokens.take()
            self._atom(depth)
            kind, text = tokens.peek()
            is_operator = text in (_OPERATORS if kind == "sign" else _WORD_OPERATORS)
            if kind not in ("sign", "name") or not is_operator:
                return
            tokens.take()
            is_power = text in ("**", "<<")
            if is_power:
                self._power(is_tower=was_power)
            was_power = is_power

    def _power(self, *, is_tower: bool) -> None:
        """`9**9**9` would keep the first call of the program busy for ever; a root, `** 0.5`, is harmless."""
        self._powers += 1
        self._tokens.accept("-")
        kind, text = self._tokens.peek()
        if is_tower or self._powers > 4 or kind != "number" or not float(text[:40]) <= _LARGEST_POWER:
            raise DocumentError("a condition with large powers")

    def _atom(self, depth: int) -> None:
        tokens = self._tokens
        if tokens.peek()[0] == "number":
            tokens.take()
        elif tokens.accept("("):
            self.condition(depth + 1)
            tokens.take(text=")")
        else:
            self._named(tokens.take("name"), depth)

    def _named(self, name: str, depth: int) -> None:
        tokens = self._tokens
        if name == "L":
            self._input()
        elif name in _FUNCTIONS:
            tokens.take(text="(")
            self._arguments(depth)
        elif name in _FUNCTIONS_OF:
            tokens.take(text=".")
            function = tokens.take("name")
            if function not in _FUNCTIONS_OF[name]:
                raise DocumentError(f"a condition with {name}.{function[:40]}")
            if tokens.accept("("):
                self._arguments(depth)
        elif name not in ("True", "False", "None"):
            raise DocumentError(f"a condition with {name[:40]!r}")

    def _arguments(self, depth: int) -> None:
        while not self._tokens.accept(")"):
            self.condition(depth + 1)
            if self._tokens.peek() != ("sign", ")"):
                self._tokens.take(text=",")

    def _input(self) -> None:
        """`L['x'][0]['key']`, then `.size()[0]` or `.shape[0]`."""
        tokens = self._tokens
        tokens.take(text="[")
        argument = tokens.take("quoted")
        if not _ARGUMENT.fullmatch(argument) or keyword.iskeyword(argument):
            raise DocumentError(f"a condition on {argument[:40]!r}, which is not an argument")
        tokens.take(text="]")
        while tokens.peek()[1] in ("[", "."):
            if tokens.accept("["):
                self._subscript()
            else:
                tokens.take(text=".")
                attribute = tokens.take("name")
                if attribute in _QUESTIONS:
                    tokens.take(text="(")
                    tokens.take(text=")")
                elif attribute not in _ATTRIBUTES:
                    raise DocumentError(f"a condition on the attribute {attribute[:40]!r}")

    def _subscript(self) -> None:
        kind, text = self._tokens.peek()
        if kind == "quoted" and not _KEY.fullmatch(text):
            raise DocumentError(f"a condition on the key {text[:40]!r}")
        if kind != "quoted":
            self._tokens.accept("-")
            kind, text = self._tokens.peek()
            if kind != "number" or not text.isdecimal():
                raise DocumentError("a condition with a subscript that is not a number or key")
        self._tokens.take()
        self._tokens.take(text="]")
