"""One architecture of transformers in small."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from .overrides import OVERRIDES
from .shrink import shrunken

__all__ = ["Architecture"]


@dataclass(frozen=True)
class Architecture:
    """A model type, and the auto class that makes its model.

    Args:
        model_type: A key of `transformers.CONFIG_MAPPING`.
        auto_class: Name of a class with `from_config`.
        is_common: Whether it is tested in every run.
    """

    model_type: str
    auto_class: str
    is_common: bool

    def __str__(self) -> str:
        return self.model_type

    @property
    def is_available(self) -> bool:
        """Whether the installed transformers has it."""
        from transformers import CONFIG_MAPPING

        return self.model_type in CONFIG_MAPPING

    @property
    def settings(self) -> Mapping[str, Any]:
        """What its `config.json` holds."""
        return _settings(self.model_type)

    def build(self) -> nn.Module:
        """Constructs it as a user does, with untrained weights."""
        import transformers

        settings = copy.deepcopy(dict(self.settings))
        config = transformers.CONFIG_MAPPING[settings.pop("model_type")].from_dict(settings)
        model: nn.Module = getattr(transformers, self.auto_class).from_config(config)
        return model

    def source(self, folder: Path) -> str:
        """Writes its `config.json` into a folder, and returns the source that `fakexport.check` takes."""
        path = folder / f"{self.model_type}.json"
        path.write_text(json.dumps(self.settings))
        return f"hf:{path}:{self.auto_class}"


@functools.cache
def _settings(model_type: str) -> Mapping[str, Any]:
    from transformers import CONFIG_MAPPING

    return _merged(shrunken(CONFIG_MAPPING[model_type]()), OVERRIDES.get(model_type, {}))


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the changes, also inside a config that stays of its type."""
    merged = dict(settings)
    for name, change in changes.items():
        inner = merged.get(name)
        is_both = isinstance(inner, Mapping) and isinstance(change, Mapping)
        if is_both and change.get("model_type") in (None, inner.get("model_type")):
            merged[name] = _merged(inner, change)
        else:
            merged[name] = change
    return merged
