"""Names and comments of generated Python, made from texts that anyone may have written."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

from torch import nn

# What a generated file has at its top: no local and no class takes one of these.
MODULE_NAMES = frozenset(
    (
        *("OrderedDict", "Path", "Program", "aten", "constants", "hashlib", "inf", "json", "load_constants"),
        *("math", "nan", "nn", "operator", "pytree", "self", "torch"),
    )
)
_TAKEN = MODULE_NAMES | frozenset(dir(builtins)) | frozenset(keyword.kwlist) | frozenset(keyword.softkwlist)
_NO_WORD = re.compile(r"[^A-Za-z0-9_]+")
_COUNTER = re.compile(r"_\d+$")
_LONGEST_NAME = 80
_LONGEST_COMMENT = 200


def identifier(text: str, *, otherwise: str = "value") -> str:
    """Return an ASCII identifier that resembles a text; no keyword, no builtin, nothing that Python mangles.

    Example:
        >>> identifier("class"), identifier("a; import os"), identifier("__x")
        ('class_', 'a_import_os', 'x')
    """
    name = _NO_WORD.sub("_", text).lstrip("_")[:_LONGEST_NAME]
    if not name or name.strip("_") == "":
        return otherwise
    if name[0].isdigit():
        name = f"{otherwise}_{name}"
    return f"{name}_" if name in _TAKEN else name


def base_name(text: str) -> str:
    """Return the name of a graph node without its number: `linear_7` is a `linear`."""
    return identifier(_COUNTER.sub("", text))


def is_plain_attribute(name: str) -> bool:
    """Return whether `self.NAME` gets the attribute of this name in the body of a class."""
    is_word = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    return is_word and (not name.startswith("__") or name.endswith("__"))


def is_free_on_module(name: str) -> bool:
    """Return whether a module can hold a weight or a child of this name."""
    return name not in _MODULE_ATTRIBUTES


_MODULE_ATTRIBUTES = (
    frozenset(dir(nn.Module())) | frozenset(dir(nn.ModuleList)) | frozenset(dir(nn.ModuleDict))
)


def comment_text(text: str) -> str:
    """Return one line that cannot end its comment, without control and invisible characters."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    shown = " ".join(shown.split())
    return shown if len(shown) <= _LONGEST_COMMENT else f"{shown[:_LONGEST_COMMENT]}..."


class Names:
    """Hands out names that are distinct from each other.

    Args:
        taken: Names that are not handed out.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def new(self, wanted: str) -> str:
        """Return the wanted name, or with a number from 2 on where it is taken."""
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted.rstrip('_')}_{number}"
        self._taken.add(name)
        return name
