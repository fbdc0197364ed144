"""Check the types and limits of values in an untrusted JSON document.

A reader is a function that takes a parsed JSON value, and returns a value of the correct type or raises
`DocumentError`.
"""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import difflib
import keyword
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

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
        raise DocumentError(f"a list of {len(value)} entries; the limit is {limit}")
    return value


def text(value: Any, limit: int = MAX_TEXT) -> str:
    if type(value) is not str:
        raise _wrong("a string", value)
    if len(value) > limit:
        raise DocumentError(f"a string of {len(value)} characters; the limit is {limit}")
    return value


def matching(form: re.Pattern[str], what: str, limit: int = MAX_TEXT) -> Callable[[Any], str]:
    """Return a reader of strings that fully match `form`. Errors call such a string a `what`."""

    def read(value: Any) -> str:
        found = text(value, limit)
        if not form.fullmatch(found):
            raise DocumentError(f"{found[:80]!r} is not a valid {what}")
        return found

    return read


def one_of(words: Collection[str], what: str = "") -> Callable[[Any], str]:
    """Return a reader that accepts only `words`. Errors list the words or, if `what` is given, use that."""

    def read(value: Any) -> str:
        word = text(value)
        if word not in words:
            fault = f"is not a valid {what}" if what else f"is none of {', '.join(words)}"
            raise DocumentError(f"{word[:80]!r} {fault}")
        return word

    return read


def identifier(value: Any) -> str:
    """Read a name that is safe in Python code that torch generates from a graph."""
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
    """Read a float. Torch writes values that JSON cannot express, such as infinity, as strings."""
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
    """Read the field `name`. If this fails, the place in the error starts with the name."""
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


def record(
    value: Any, readers: Mapping[str, Callable[[Any], Any]], absent: Collection[str] = ()
) -> dict[str, Any]:
    """Read the fields of an object. It has no other fields, and only those in `absent` may be missing."""
    owner = mapping(value)
    if unknown := sorted(owner.keys() - readers.keys()):
        raise DocumentError(f"the field {unknown[0][:80]!r} is unknown")
    given = readers.items()
    return {name: field(owner, name, read) for name, read in given if name in owner or name not in absent}


def check_keys(
    table: Mapping[Any, Any],
    known: Collection[str],
    spellings: Mapping[str, str] = types.MappingProxyType({}),
) -> None:
    """Reject an unknown key, and suggest a similar one. `spellings` maps other spellings to known keys."""
    for key in table:
        if (spellings or {}).get(key, key) not in known:
            near = difflib.get_close_matches(str(key), sorted(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(known))}"
            raise DocumentError(f"unknown key: {hint}").within(str(key))


def source_text(value: Any) -> str:
    """Read a model source, as given on the command line. It has no null character and no leading hyphen."""
    read = text(value)
    if "\0" in read or read.startswith("-"):
        raise DocumentError("expected a source, such as model.py:factory")
    return read


@dataclass(frozen=True)
class Most:
    """The maximum number of entries of a list or object: `Annotated[tuple[int, ...], Most(64)]`."""

    entries: int


def reader_of(kind: type[T], /, *, most: int = MAX_COUNT, may_omit: bool = False) -> Callable[[Any], T]:
    """Return a reader that creates a dataclass from an object. Each field is read according to its type.

    The object must have exactly the fields of the dataclass, except those with `compare=False`. A field of
    type `Annotated[T, read]` is read with the reader `read`. If the dataclass validates its fields and raises
    a ValueError, the reader raises a `DocumentError`.

    Args:
        most: Maximum number of entries in a list or object that has no `Most`.
        may_omit: Whether fields that have a default may be missing. `stored_fields` omits them if their value
            is the default.
    """
    hints, defaults = get_type_hints(kind, include_extras=True), _defaults(cast("Any", kind))
    readers = {name: _of_type(hints[name], most, may_omit) for name in defaults}
    absent = {name for name, default in defaults.items() if may_omit and default is not dataclasses.MISSING}

    def read(value: Any) -> T:
        found = record(value, readers, absent)
        try:
            return kind(**found)
        except ValueError as error:
            raise DocumentError(str(error)) from None

    return read


def stored_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that must be stored: those whose value is not the default."""
    defaults = _defaults(cast("Any", type(value)))
    return {name: entry for name in defaults if (entry := getattr(value, name)) != defaults[name]}


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    """Return the default of each stored field, or `MISSING`."""
    return {
        each.name: each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        for each in dataclasses.fields(kind)
        if each.compare
    }


def _of_type(hint: Any, most: int, may_omit: bool, own: int | None = None) -> Callable[[Any], Any]:
    """Return a reader of a type.

    `own` limits the number of entries of the container itself, and `most` that of the containers in it.
    """
    if hint in _PLAIN:
        return _PLAIN[hint]
    limit = most if own is None else own
    match get_origin(hint), get_args(hint):
        case typing.Annotated, (kind, Most(entries=own)):
            return _of_type(kind, most, may_omit, own)
        case typing.Annotated, (_, read):
            return cast("Callable[[Any], Any]", read)
        case ((types.UnionType | typing.Union), (kind, types.NoneType)):
            present = _of_type(kind, most, may_omit)
            return lambda value: optional(value, present)
        case builtins.tuple, (kind, builtins.Ellipsis):
            each = _of_type(kind, most, may_omit)
            return lambda value: tuple(items(value, each, limit))
        case builtins.tuple, kinds:
            return _tuple_of([_of_type(kind, most, may_omit) for kind in kinds])
        case ((builtins.dict | collections.abc.Mapping), (_, kind)):
            each = _of_type(kind, most, may_omit)
            return lambda value: entries(value, each, limit)
        case typing.Literal, words:
            return one_of(words)
    return reader_of(hint, most=most, may_omit=may_omit)


def _tuple_of(readers: list[Callable[[Any], Any]]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a reader of lists that have one entry per reader."""

    def read(value: Any) -> tuple[Any, ...]:
        if len(sequence(value)) != len(readers):
            raise DocumentError(f"expected a list of {len(readers)} entries, got {len(value)}")
        each = iter(readers)
        return tuple(items(value, lambda entry: next(each)(entry)))

    return read


def items(value: Any, read: Callable[[Any], T], limit: int = MAX_COUNT) -> list[T]:
    """Read each entry of a list. If `read` fails, the place in the error starts with the index."""
    result: list[T] = []
    for entry in sequence(value, limit):
        try:
            result.append(read(entry))
        except DocumentError as error:
            raise error.within(f"[{len(result)}]") from None
    return result


def entries(value: Any, read: Callable[[Any], T], limit: int = MAX_COUNT) -> dict[str, T]:
    """Read each value of an object. If `read` fails, the place in the error starts with the key."""
    result: dict[str, T] = {}
    for key, entry in named_items(value, limit):
        try:
            result[key] = read(entry)
        except DocumentError as error:
            raise error.within(f"[{key[:80]!r}]") from None
    return result


def named_items(value: Any, limit: int = MAX_COUNT) -> Iterator[tuple[str, Any]]:
    owner = mapping(value)
    if len(owner) > limit:
        raise DocumentError(f"an object of {len(owner)} entries; the limit is {limit}")
    for key, entry in owner.items():
        yield text(key, 10_000), entry


def union(value: Any) -> tuple[str, Any]:
    """Read an object with a single field, whose name determines its type, such as `{"as_int": 3}`."""
    if type(value) is not dict or len(value) != 1:
        raise DocumentError("expected an object with exactly one field")
    return next(iter(value.items()))


_LENGTH = 4096
_WORD = r"[A-Za-z_]\w*"

operator_name = matching(re.compile(rf"{_WORD}(\.{_WORD}){{2}}", re.ASCII), "operator", _LENGTH)
"""Reader of operator names such as `signal_ops.soft_clip.default`."""
class_name = matching(re.compile(rf"{_WORD}(::{_WORD})+", re.ASCII), "C++ class", _LENGTH)
"""Reader of C++ class names such as `signal_ops::Polynomial`."""
module_name = matching(re.compile(rf"{_WORD}(\.{_WORD})*", re.ASCII), "Python module name", 200)
"""Reader of module names such as `transformers.integrations.moe`."""

Name = Annotated[str, lambda value: text(value, _LENGTH)]
Sentence = Annotated[str, lambda value: text(value, 10_000)]
Size = Annotated[int, lambda value: integer(value, lowest=0)]
Sha256 = Annotated[str, matching(re.compile(r"[0-9a-f]{64}"), "sha256 in hex")]
_PLAIN: Mapping[Any, Callable[[Any], Any]] = {str: text, int: integer, float: decimal, bool: boolean}
