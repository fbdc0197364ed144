"""Settings of small models in JSON files: `"bases": ["text"]` in an object stands for those of that name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of a file, with the settings of `bases` in the objects that name them."""
    content = json.loads(path.read_text())
    return {name: _resolved(value, content["bases"]) for name, value in content.items()}


def _resolved(value: Any, bases: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_resolved(item, bases) for item in value]
    if not isinstance(value, dict):
        return value
    named = value.get("bases", ())
    shared = {key: each for name in named for key, each in bases[name].items()}
    return shared | {key: _resolved(each, bases) for key, each in value.items() if key != "bases"}
