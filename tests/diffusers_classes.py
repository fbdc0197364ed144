"""Small settings of classes of diffusers, and the shapes of the inputs that their pipelines pass."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())

CLASSES: dict[str, dict[str, Any]] = _TABLES["classes"]
HALVES: dict[str, dict[str, Any]] = _TABLES["halves"]
MODELS: dict[str, dict[str, Any]] = _TABLES["models"]
"""Models in the layouts of published ones: class and settings; after a `/` the half that is exported."""

PIPELINES: dict[str, dict[str, Any]] = _TABLES["pipelines"]
"""Scheduler, class and settings of its model, and what a pipeline is called with instead of a text."""
