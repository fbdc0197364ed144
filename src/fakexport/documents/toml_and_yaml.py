"""TOML and YAML from an untrusted author: parsed once the text shows that the values will be small enough."""

from __future__ import annotations

from typing import Any

from fakexport.diagnostics import escaped

from .document_error import DocumentError

_MOST_MEMORY_BYTES = 512 << 20
_MOST_YAML_BYTES = 1 << 20


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        DocumentError: not UTF-8, not TOML, too deep, an integer of more digits than Python converts, or
            values that may take more than 512 MiB.
    """
    import tomllib  # It takes 20 ms, and `--help` is waited for.

    # Measured on CPython 3.11: a part of a key takes 700 bytes, as a table and in the parser's notes.
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
    except ValueError as error:  # Also an integer of thousands of digits.
        raise DocumentError(f"not TOML: {escaped(str(error).partition(';')[0])}") from None


def parse_yaml(content: bytes) -> Any:
    """Return the value of a YAML text: what `yaml.safe_load` makes of it.

    Raises:
        DocumentError: larger than 1 MiB, not YAML, too deep, or a value that does not fit its tag.
    """
    import yaml  # Few commands need it.

    if len(content) > _MOST_YAML_BYTES:
        raise DocumentError(f"{len(content)} bytes of YAML; the limit is {_MOST_YAML_BYTES}")
    try:
        return yaml.safe_load(content)
    except RecursionError:
        raise DocumentError("nested too deeply") from None
    except Exception as error:  # PyYAML converts `!!int x` and `2001-99-99` without a check.
        raise DocumentError(f"not YAML: {escaped(' '.join(str(error).split()))}") from None
