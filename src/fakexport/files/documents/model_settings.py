"""Compare the `config.json` from which a model was exported with the one next to a checkpoint."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fakexport.files import read_file

_CONFIG, _MOST_BYTES = "config.json", 10_000_000
# These do not change what a forward pass in evaluation mode computes from given weights.
_IRRELEVANT = re.compile(
    r".*(dropout|layerdrop|initializer|loss).*|(bos|eos|pad|sep)_token_id|(torch_)?dtype|architectures|"
    r"use_cache|pretraining_tp|quantization_config|auto_map|transformers_version|(id2label|label2id)|_.*"
)


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
        config = json.loads(read_file(folder / _CONFIG, most_bytes=_MOST_BYTES))
        found = flat_settings(config)
    except (OSError, ValueError, AttributeError, RecursionError):
        return (f"{_CONFIG} cannot be read",)
    pairs: dict[str, tuple[str, str]] = {}
    for name in dict.fromkeys((*exported, *found)):
        ours, theirs = _value(exported, name), _value(found, name)
        if ours is not None and theirs is not None:
            pairs[name] = ours, theirs
    moved = _by_last_part(found)
    for last, name in _by_last_part(exported).items():
        other = moved.get(last)
        if name not in pairs and other is not None and other not in exported:
            pairs[name] = exported[name], found[other]
    return tuple(
        f"{name} is {ours}, but {theirs} in {_CONFIG}"
        for name, (ours, theirs) in pairs.items()
        if json.loads(ours) != json.loads(theirs)
    )


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if _IRRELEVANT.fullmatch(name) or (isinstance(value, str) and "/" in value):
            continue  # A path does not belong into an archive.
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _value(settings: Mapping[str, str], name: str) -> str | None:
    """Return the value of a setting, which may have nested settings, or None."""
    inside = f"{name}."
    nested = {each: value for each, value in settings.items() if each.startswith(inside)}
    if name in settings or not nested:
        return settings.get(name)
    return json.dumps({each.removeprefix(inside): json.loads(value) for each, value in nested.items()})


def _by_last_part(settings: Mapping[str, str]) -> dict[str, str]:
    """Map the last part of each name to the name, if only one name ends with it."""
    last = {name: name.rpartition(".")[2] for name in settings}
    count = Counter(last.values())
    return {part: name for name, part in last.items() if count[part] == 1}
