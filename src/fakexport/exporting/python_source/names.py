"""Create safe names and comments for generated Python from untrusted text."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

from torch import nn

# Names at the top of a generated file, which no local variable or class may use.
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
    """Return an ASCII identifier similar to a text. It is not a keyword, builtin or mangled name.

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
    """Return the name of a graph node without its number: `linear` for `linear_7`."""
    return identifier(_COUNTER.sub("", text))


def is_plain_attribute(name: str) -> bool:
    """Return whether `self.NAME` in a method accesses the attribute with exactly this name."""
    is_word = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    return is_word and (not name.startswith("__") or name.endswith("__"))


def is_free_on_module(name: str) -> bool:
    """Return whether a weight or child of a module can have this name."""
    return name not in _MODULE_ATTRIBUTES


_MODULE_ATTRIBUTES = (
    frozenset(dir(nn.Module())) | frozenset(dir(nn.ModuleList)) | frozenset(dir(nn.ModuleDict))
)


def comment_text(text: str) -> str:
    """Return text that is safe for a comment: a single line without control and invisible characters."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    shown = " ".join(shown.split())
    return shown if len(shown) <= _LONGEST_COMMENT else f"{shown[:_LONGEST_COMMENT]}..."


class Names:
    """Creates distinct names.

    Args:
        taken: Names that are not available.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def new(self, wanted: str) -> str:
        """Return the requested name. If it is taken, append a number, starting at 2."""
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted.rstrip('_')}_{number}"
        self._taken.add(name)
        return name
