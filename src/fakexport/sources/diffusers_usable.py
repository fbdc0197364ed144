"""Which classes of diffusers cannot be exported by themselves, or with their defaults, or lack a package."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from fakexport.sources.diffusers_config import DiffusersModel
from fakexport.sources.source_error import SourceError

PUBLISHED = (
    "pass the config of a published model: `diffusers:ORG/NAME`, or `diffusers:FOLDER` with its config.json"
)
"""What to pass in place of a default configuration, as an imperative clause."""

# Weights for another model, which runs them.
_PARTS: Mapping[str, str] = MappingProxyType(
    {"MotionAdapter": "UNetMotionModel", "ControlNetXSAdapter": "UNetControlNetXSModel"}
)
# Given other models, and without weights, or a config, of their own.
_OF_OTHERS = ("MultiControlNetModel", "MultiAdapter")
# The forward of these resizes a mask of padding with torchvision, which diffusers imports if it is there.
# Without it, forward raises a `NameError`. The first one has a setting without which it resizes nothing.
_WITH_TORCHVISION: Mapping[str, str | None] = MappingProxyType(
    {"CosmosTransformer3DModel": "concat_padding_mask", "CosmosControlNetModel": None}
)


def check_usable(spec: str, found: DiffusersModel) -> None:
    """Refuse a class that cannot be exported with the settings that are given.

    Args:
        spec: The whole spec, for messages.
        found: The class, and its settings; empty for the default ones.
    Raises:
        SourceError: It is a part of another model, or made of others; or it has no default configuration.
    """
    name = found.model_class.__name__
    what = spec if name in spec else f"{spec}: {name}"
    if (whole := _PARTS.get(name)) is not None:
        raise SourceError(f"{what} has no forward of its own, it is a part of {whole}: check that")
    if name.endswith(_OF_OTHERS):
        raise SourceError(f"{what} is made of other models and has no config: check each of these")
    if not found.settings and (missing := _required(found.model_class)):
        raise SourceError(
            f"{what} has no default configuration, it requires {', '.join(missing)}: {PUBLISHED}"
        )


def check_packages(found: DiffusersModel) -> None:
    """Import a package that the forward of a class needs, and that diffusers does not ask for.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    name = found.model_class.__name__
    if name not in _WITH_TORCHVISION:
        return
    setting = _WITH_TORCHVISION[name]
    if setting is None or found.settings.get(setting, True):
        import_module("torchvision")


def _required(model_class: Any) -> list[str]:
    _, *parameters = inspect.signature(model_class.__init__).parameters.values()
    return [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
