"""Parse untrusted JSON, TOML and YAML. Limits are checked on the text, before any value is created."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fakexport.files import escaped
from fakexport.files.documents.document_error import DocumentError

MIB = 1 << 20


def parse_json(text: bytes, *, most_bytes: int = 128 * MIB, most_memory_bytes: int = 512 * MIB) -> Any:
    """Parse a JSON text into dicts with unique keys, lists, strings, numbers, booleans and None.

    The values of numbers are not limited here: integers may have any size, and `1e999` is infinity. Their
    range is checked when a field is read.

    Args:
        text: The JSON text in UTF-8.
        most_bytes: Limit on the size of the text.
        most_memory_bytes: Limit on the estimated memory for the values.

    Raises:
        DocumentError: The text is not UTF-8, is not JSON, exceeds a limit, is nested too deeply, or has a
            duplicate key, a literal NaN or Infinity, or an integer with more digits than Python converts.
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
    except ValueError as error:  # An integer with thousands of digits.
        raise DocumentError(str(error).partition(";")[0]) from None


def memory_estimate(text: bytes) -> int:
    """Return an upper bound of the memory that parsing takes, by counting characters that begin a value.

    Measured on CPython 3.11: an object with one entry takes 232 bytes, and 136 more while it is parsed. A
    list takes 88 bytes, a string 49 bytes plus its characters, and an integer 32 bytes. Each value also takes
    a pointer in its container.
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
    """Pause the garbage collector in a block that creates millions of objects and keeps them all.

    A full collection visits every object of torch and transformers, which takes about 0.5 s. Parsing the
    document of a large program would trigger several collections. The pause also makes `json.loads` of such a
    document ten times faster.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_MOST_MEMORY_BYTES = 512 << 20
_MOST_YAML_BYTES = 1 << 19  # In the worst case, parsing 50 KB takes a second.


def parse_toml(content: bytes) -> dict[str, Any]:
    """Parse a TOML text. Reject it if parsing it may take more than 512 MiB of memory."""
    import tomllib  # The import takes 20 ms, which would delay `--help`.

    # Measured on CPython 3.11: each part of a key takes 700 bytes, for its table and in the parser.
    opening = content.count(b".") + content.count(b"[") + content.count(b"{")
    values = content.count(b"=") + content.count(b",") + content.count(b"\n")
    if (needed := 9 * len(content) + 700 * opening + 110 * values) > _MOST_MEMORY_BYTES:
        raise DocumentError(
            f"its values may take {needed} bytes of memory; the limit is {_MOST_MEMORY_BYTES}"
        )
    try:
        return tomllib.loads(content.decode())
    except RecursionError:
        raise DocumentError("nested too deeply") from None
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 at byte {error.start}") from None
    except ValueError as error:  # Includes an integer with thousands of digits.
        raise DocumentError(f"not TOML: {escaped(str(error).partition(';')[0])}") from None


def parse_yaml(content: bytes) -> Any:
    """Parse a YAML text of at most 512 KiB like `yaml.safe_load`."""
    import yaml  # Few commands need it.

    if len(content) > _MOST_YAML_BYTES:
        raise DocumentError(f"{len(content)} bytes of YAML; the limit is {_MOST_YAML_BYTES}")
    try:
        return yaml.safe_load(content)
    except RecursionError:
        raise DocumentError("nested too deeply") from None
    except Exception as error:  # PyYAML does not validate values such as `!!int x` and `2001-99-99`.
        raise DocumentError(f"not YAML: {escaped(' '.join(str(error).split()))}") from None
