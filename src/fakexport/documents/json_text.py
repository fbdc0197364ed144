"""JSON from an untrusted author: parsed only once its text shows that the values will be small enough."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .document_error import DocumentError

MIB = 1 << 20


def parse_json(text: bytes, *, most_bytes: int = 128 * MIB, most_memory_bytes: int = 512 * MIB) -> Any:
    """Return the value of a JSON text: dicts with unique keys, lists, strings, numbers, booleans, None.

    Numbers are as Python reads them: integers of any size, `1e999` as infinity. The schema bounds them.

    Args:
        text: UTF-8.
        most_bytes: Limit on the size of the text.
        most_memory_bytes: Limit on the memory of its values, by estimate.
    Raises:
        DocumentError: Not UTF-8, not JSON, larger than a limit, too deep, a key twice in one object, NaN
            or infinity by name, an integer of more digits than Python converts.
    """
    if len(text) > most_bytes:
        raise DocumentError(f"{len(text)} bytes of JSON; the limit is {most_bytes}")
    if (needed := memory_estimate(text)) > most_memory_bytes:
        raise DocumentError(f"its values may take {needed} bytes of memory; the limit is {most_memory_bytes}")
    try:
        with collection_paused():
            return json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_constant)
    except DocumentError:
        raise
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise DocumentError(f"not JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise DocumentError("nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise DocumentError(str(error).partition(";")[0]) from None


def memory_estimate(text: bytes) -> int:
    """Return an upper bound of the memory that parsing takes, from the characters that begin a value.

    Measured on CPython 3.11: an object takes 232 bytes with its one entry and 136 more while it is read, a
    list 88, a string 49 and its characters, an integer 32, and each a pointer in what holds it.
    """
    width = 3 if text.isascii() else 9
    return (
        width * len(text)
        + 380 * text.count(b"{")
        + 100 * text.count(b"[")
        + 110 * text.count(b":")
        + 80 * text.count(b",")
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DocumentError(f"an object has the key {key[:80]!r} twice")
            seen.add(key)
    return found


def _constant(name: str) -> float:
    raise DocumentError(f"{name} is not valid JSON")


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector in the block, which creates millions of objects and drops none of them.

    Each full collection walks every object of torch and transformers, some 0.5 s; a document of a large
    program would trigger several. `json.loads` of such a document becomes ten times faster as well.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
