"""A tensor parallel plan in a JSON file: the style of modules and weights, by the pattern of their names."""

from __future__ import annotations

from pathlib import Path

from fakexport.documents import DocumentError, mapping, optional, parse_json, text
from fakexport.error import InvalidValue
from fakexport.files import read_file

Rules = tuple[tuple[str, str | None], ...]
"""Pattern and style of each rule, as transformers writes plans; None takes a rule of the model away."""

_MOST_BYTES = 1 << 20


def read_plan(path: str | Path) -> Rules:
    """Return the rules of a file such as `{"model.layers.*.mlp.up_proj": "colwise", "lm_head": null}`.

    Raises:
        ValueError: It cannot be read, or is something else; one line.
    """
    try:
        value = mapping(parse_json(read_file(path, most_bytes=_MOST_BYTES)))
        found = tuple((text(name), optional(style, text)) for name, style in value.items())
    except OSError as error:
        raise InvalidValue(f"plan {path}: {error.strerror or error}") from error
    except DocumentError as error:
        raise InvalidValue(f"plan {path}: {error}: expected names of modules with styles or null") from error
    if not found:
        raise InvalidValue(f"plan {path} has no rules")
    return found
