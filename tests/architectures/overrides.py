"""Settings that the name of a field cannot tell: what has to fit something else, and what has no default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["OVERRIDES"]

# model type -> settings that are merged into the shrunken ones
OVERRIDES: Mapping[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())
