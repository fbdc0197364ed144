"""Values from an untrusted JSON document: of the right type, within limits, or an error.

Each function takes a value of plain Python types and returns it typed, or raises `DocumentError`.
"""

from __future__ import annotations

import builtins
import dataclasses
import keyword
import math
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from .document_error import DocumentError

T = TypeVar("T")

MAX_INTEGER = 2**63 - 1
MAX_COUNT = 2_000_000
MAX_TEXT = 1_000_000

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MAX_NAME = 1000
_NO_NAME = frozenset(
    (*keyword.kwlist, "__debug__", "torch", "inf", "nan", "NoneType", "fx_pytree", "pytree", "self")
)


def _wrong(expected: str, value: object) -> DocumentError:
    return DocumentError(f"expected {expected}, got {'null' if value is None else type(value).__name__}")


def mapping(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise _wrong("an object", value)
    return value


def sequence(value: Any, limit: int = MAX_COUNT) -> list[Any]:
    if type(value) is not list:
        raise _wrong("a list", value)
    if len(value) > limit:
        raise DocumentError(f"a list of {len(value)} entries; at most {limit} are read")
    return value


def text(value: Any, limit: int = MAX_TEXT) -> str:
    if type(value) is not str:
        raise _wrong("a string", value)
    if len(value) > limit:
        raise DocumentError(f"a string of {len(value)} characters; at most {limit} are read")
    return value


def matching(form: re.Pattern[str], what: str, limit: int = MAX_TEXT) -> Callable[[Any], str]:
    """Return a reader of strings that `form` matches as a whole; `what` describes them."""

    def read(value: Any) -> str:
        found = text(value, limit)
        if not form.fullmatch(found):
            raise DocumentError(f"{found[:80]!r} is not a valid {what}")
        return found

    return read


def one_of(words: Collection[str], what: str) -> Callable[[Any], str]:
    """Return a reader of exactly these strings; `what` describes them."""

    def read(value: Any) -> str:
        word = text(value)
        if word not in words:
            raise DocumentError(f"{word[:80]!r} is not a valid {what}")
        return word

    return read


def identifier(value: Any) -> str:
    """Read a name that may appear in the Python code that torch generates from a graph."""
    name = text(value)
    if not _IDENTIFIER.fullmatch(name) or name in _NO_NAME or len(name) > _MAX_NAME:
        raise DocumentError(f"{name[:80]!r} is not a valid name for a value")
    return name


def integer(value: Any, lowest: int = -MAX_INTEGER - 1, highest: int = MAX_INTEGER) -> int:
    if type(value) is not int:
        raise _wrong("an integer", value)
    if not lowest <= value <= highest:
        raise DocumentError(f"an integer outside the range {lowest} to {highest}")
    return value


def boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong("true or false", value)
    return value


def decimal(value: Any) -> float:
    """Read a floating-point number; torch writes those that JSON cannot express as strings."""
    if type(value) is float:
        return value
    if type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER:
        return float(value)
    if value in ("Infinity", "-Infinity", "NaN"):
        return {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}[value]
    raise _wrong("a number", value)


def optional(value: Any, read: Callable[[Any], T]) -> T | None:
    return None if value is None else read(value)


def field(owner: dict[str, Any], name: str, read: Callable[[Any], T], default: Any = ...) -> T:
    """Read the field `name`; a fault inside is reported with its name."""
    if name not in owner:
        if default is ...:
            raise DocumentError("this field is missing").within(name)
        value = default
    else:
        value = owner[name]
    try:
        return read(value)
    except DocumentError as error:
        raise error.within(name) from None


def record(value: Any, readers: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Read the fields of an object that has exactly these, each with its reader."""
    owner = mapping(value)
    if unknown := sorted(owner.keys() - readers.keys()):
        raise DocumentError(f"the field {unknown[0][:80]!r} is unknown")
    return {name: field(owner, name, read) for name, read in readers.items()}


def source_text(value: Any) -> str:
    """Read a source as the command line takes it: without a null character, and not an option."""
    read = text(value)
    if "\0" in read or read.startswith("-"):
        raise DocumentError("expected a source, such as model.py:factory")
    return read


def reader_of(
    kind: type[T],
    /,
    *,
    most: int = MAX_COUNT,
    by_type: Mapping[Any, Callable[[Any], Any]] = MappingProxyType({}),
    **own: Callable[[Any], Any],
) -> Callable[[Any], T]:
    """Return a reader of objects that have exactly the fields of a dataclass, each read by its type.

    A ValueError of the dataclass, which checks its fields against each other, is a fault of the document.

    Args:
        most: Entries of a list.
        by_type: Readers of types, instead of those that take any string or any integer.
        own: Readers of fields that take less than their type says.
    """
    known: dict[Any, Callable[[Any], Any]] = {str: text, int: integer, float: decimal, bool: boolean}
    known |= by_type
    hints = get_type_hints(kind)
    names = [each.name for each in dataclasses.fields(cast("type[Any]", kind))]
    readers = {name: own.get(name) or _of_type(hints[name], known, most) for name in names}

    def read(value: Any) -> T:
        found = record(value, readers)
        try:
            return kind(**found)
        except ValueError as error:
            raise DocumentError(str(error)) from None

    return read


def _of_type(hint: Any, known: Mapping[Any, Callable[[Any], Any]], most: int) -> Callable[[Any], Any]:
    match get_origin(hint), get_args(hint):
        case types.UnionType, (kind, types.NoneType):
            present = _of_type(kind, known, most)
            return lambda value: optional(value, present)
        case builtins.tuple, (kind, builtins.Ellipsis):
            each = _of_type(kind, known, most)
            return lambda value: tuple(items(value, each, most))
    return known[hint]


def items(value: Any, read: Callable[[Any], T], limit: int = MAX_COUNT) -> list[T]:
    """Read each entry of a list; a fault inside is reported with its index."""
    result: list[T] = []
    for entry in sequence(value, limit):
        try:
            result.append(read(entry))
        except DocumentError as error:
            raise error.within(f"[{len(result)}]") from None
    return result


def entries(value: Any, read: Callable[[Any], T]) -> dict[str, T]:
    """Read each value of an object; a fault inside is reported with its key."""
    result: dict[str, T] = {}
    for key, entry in named_items(value):
        try:
            result[key] = read(entry)
        except DocumentError as error:
            raise error.within(f"[{key[:80]!r}]") from None
    return result


def named_items(value: Any) -> Iterator[tuple[str, Any]]:
    owner = mapping(value)
    if len(owner) > MAX_COUNT:
        raise DocumentError(f"an object of {len(owner)} entries; at most {MAX_COUNT} are read")
    for key, entry in owner.items():
        yield text(key, 10_000), entry


def union(value: Any) -> tuple[str, Any]:
    """Read an object with one field, whose name determines the type of its value: `{"as_int": 3}`."""
    if type(value) is not dict or len(value) != 1:
        raise DocumentError("expected an object with exactly one field")
    return next(iter(value.items()))


_LENGTH = 4096
_WORD = r"[A-Za-z_]\w*"

operator_name = matching(re.compile(rf"{_WORD}(\.{_WORD}){{2}}", re.ASCII), "operator", _LENGTH)
"""`signal_ops.soft_clip.default`."""
class_name = matching(re.compile(rf"{_WORD}(::{_WORD})+", re.ASCII), "C++ class", _LENGTH)
"""`signal_ops::Polynomial`."""
module_name = matching(re.compile(rf"{_WORD}(\.{_WORD})*", re.ASCII), "Python module name", 200)
"""`transformers.integrations.moe`."""
