"""Compare the `config.json` from which a model was exported with the one next to a checkpoint."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fakexport.files import read_file

from .document_error import DocumentError

_CONFIG, _MOST_BYTES, _DEEPEST = "config.json", 16 << 20, 20
# These do not change what a forward pass in evaluation mode computes from given weights.
_IRRELEVANT = re.compile(
    r".*(dropout|layerdrop|initializer|loss).*|(bos|eos|pad|sep)_token_id|(torch_)?dtype|architectures|"
    r"use_cache|pretraining_tp|quantization_config|auto_map|transformers_version|(id2label|label2id)|_.*"
)


def parse_config(content: bytes) -> Any:
    """Parse a `config.json`, in which transformers writes infinity as `{"__float__": "Infinity"}`.

    Raises:
        ValueError, RecursionError: it is not JSON, or it is nested too deeply.
    """
    return json.loads(content.decode(), object_hook=_special_float)


def flat_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that may change what a model computes, as JSON by name.

    A nested setting has a name such as `rope_scaling.factor`.
    """
    return {name: json.dumps(value, sort_keys=True) for name, value in sorted(_leaves(config, ""))}


def differing_settings(exported: Mapping[str, str], checkpoint: Path | None) -> tuple[str, ...]:
    """Return a text for each setting that differs in the `config.json` next to a checkpoint.

    A setting that only one of the files has is not compared, because the model's class knows its default.
    Versions of transformers nest settings differently, so these are compared by the last part of their names.

    Args:
        exported: The settings of the exported model, from `flat_settings`.
        checkpoint: The checkpoint's folder, or a file in it. None, or no such file: nothing is compared.
    """
    folder = checkpoint if checkpoint is None or checkpoint.is_dir() else checkpoint.parent
    if not exported or folder is None or not (folder / _CONFIG).is_file():
        return ()
    try:
        found = flat_settings(parse_config(read_file(folder / _CONFIG, most_bytes=_MOST_BYTES)))
    except (OSError, ValueError, AttributeError, RecursionError):
        return (f"{_CONFIG} cannot be read",)
    ours, theirs = _with_sections(exported), _with_sections(found)
    pairs = {name: (value, theirs[name]) for name, value in ours.items() if name in theirs}
    moved = _by_last_part(found)
    for last, name in _by_last_part(exported).items():
        other = moved.get(last)
        if name not in pairs and other is not None and other not in exported:
            pairs[name] = exported[name], found[other]
    return tuple(
        f"{name} is {mine}, but {other} in {_CONFIG}"
        for name, (mine, other) in pairs.items()
        if mine != other and json.loads(mine) != json.loads(other) and (name in exported or name in found)
    )


def _leaves(settings: Mapping[str, Any], prefix: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > _DEEPEST:
        raise DocumentError(f"`{prefix[:200]}` is nested deeper than {_DEEPEST} levels")
    for name, value in settings.items():
        if _IRRELEVANT.fullmatch(name) or (isinstance(value, str) and "/" in value):
            continue  # A path does not belong into an archive.
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.", depth + 1)
        else:
            yield f"{prefix}{name}", value


def _with_sections(settings: Mapping[str, str]) -> dict[str, str]:
    """Add the settings that contain others, because the other file may have null instead."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        for dot in re.finditer(r"\.", name):
            sections.setdefault(name[: dot.start()], {})[name[dot.end() :]] = json.loads(value)
    return {**{name: json.dumps(inner) for name, inner in sections.items()}, **settings}


def _by_last_part(settings: Mapping[str, str]) -> dict[str, str]:
    """Map the last part of each name to the name, if only one name ends with it."""
    last = {name: name.rpartition(".")[2] for name in settings}
    count = Counter(last.values())
    return {part: name for name, part in last.items() if count[part] == 1}


def _special_float(value: dict[str, Any]) -> Any:
    """Convert `{"__float__": "Infinity"}` and similar dicts to a float, and return other dicts unchanged."""
    named = value.get("__float__") if len(value) == 1 else None
    return float(named) if named in ("Infinity", "-Infinity", "NaN") else value
