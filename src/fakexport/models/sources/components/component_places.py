"""Find the modules and methods that compute the parts of a multimodal model, by role."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

FORWARD = "forward"


@dataclass(frozen=True)
class Place:
    """A method of a submodule that computes a part of the model.

    Args:
        role: The modality of the result, such as `vision`. Empty for a module that the user names.
        path: Path of the module; empty for the whole model.
        method: `forward`, or a method that encodes one modality.
    """

    role: str
    path: str
    method: str = FORWARD

    def __str__(self) -> str:
        name = self.path or "the model"
        return name if self.method == FORWARD else f"{name}.{self.method}"


# Methods that return features -> the modality of the features.
_METHODS: Mapping[str, str] = MappingProxyType(
    {
        "get_text_features": "text",
        "get_image_features": "vision",
        "get_video_features": "video",
        "get_audio_features": "audio",
    }
)
# Names of sub-configs -> the role of a module that is built from the sub-config.
_CONFIGS: Mapping[str, str] = MappingProxyType(
    {
        "vision_config": "vision",
        "audio_config": "audio",
        "speech_config": "audio",
        "audio_encoder": "audio",
        "encoder_config": "audio",
        "qformer_config": "connector",
        "text_config": "text",
        "text_encoder": "text",
        "encoder": "encoder",
    }
)
# Names of modules and their roles, used if no config determines the role.
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("visual", "vision_tower", "vision_model", "vision_encoder", "image_encoder"), "vision"
        ),
        **dict.fromkeys(("audio_tower", "audio_model", "audio_encoder", "speech_encoder"), "audio"),
        **dict.fromkeys(
            (
                *("multi_modal_projector", "mm_projector", "connector", "qformer", "merger", "projector"),
                *("image_to_text_projection", "language_projection", "embed_vision", "aligner", "perceiver"),
            ),
            "connector",
        ),
        **dict.fromkeys(("text_model", "text_tower", "text_encoder"), "text"),
    }
)
# Roles whose results are inputs of the rest of the model, in order of priority.
ENCODERS = ("vision", "video", "audio", "encoder")
# Names of the rest of the model, which computes the logits (for two towers, their similarity) from the
# encoders' results.
RESTS = ("language", "decoder", "head")


def places(module: nn.Module) -> tuple[Place, ...]:
    """Return the modules and methods that may compute each role's result, the most specific first."""
    return tuple(
        dict.fromkeys((*_methods(module), *_encoders(module), *_of_configs(module), *_named(module)))
    )


def named_places(module: nn.Module, name: str) -> tuple[Place, ...]:
    """Return the modules that a name may refer to.

    If the name is the path of a module, return only this module. Otherwise, return the modules whose path
    ends with the name or whose class has this name, limited to those with the shortest paths.
    """
    classes = {path: type(part).__name__ for path, part in module.named_modules() if path}
    if name in classes:
        return (Place("", name),)
    fitting = [path for path, each in classes.items() if path.endswith(f".{name}") or each == name]
    depths = [path.count(".") for path in fitting]
    return tuple(Place("", path) for path in fitting if path.count(".") == min(depths))


def module_names(module: nn.Module) -> tuple[str, ...]:
    """Return the paths of the model's children, with those of the wrapped base model instead of its own."""
    parts = dict(module.named_children())
    if isinstance(inner := parts.get(getattr(module, "base_model_prefix", "")), nn.Module):
        prefix = module.base_model_prefix
        inside = [f"{prefix}.{name}" for name, _ in inner.named_children()]
        return (*inside, *(name for name in parts if name != prefix))
    return tuple(parts)


def _methods(module: nn.Module) -> Iterator[Place]:
    for method, role in _METHODS.items():
        for path, part in module.named_modules():
            if callable(getattr(type(part), method, None)):
                yield Place(role, path, method)


def _encoders(module: nn.Module) -> Iterator[Place]:
    """Yield the encoder of an encoder-decoder model."""
    model: Any = module
    config = model.config
    if getattr(config, "is_encoder_decoder", False) and callable(getattr(model, "get_encoder", None)):
        encoder: Any = model.get_encoder()
        for path, part in module.named_modules():
            if part is encoder and path:
                yield Place("encoder", path)


def _of_configs(module: nn.Module) -> Iterator[Place]:
    config: Any = module.config
    inner = {id(found): role for name, role in _CONFIGS.items() if (found := getattr(config, name, None))}
    for path, part in module.named_modules():
        role = inner.get(id(getattr(part, "config", None)))
        # Layers and embeddings also have their model's config, but only the classes of models have a
        # `config_class`.
        if path and role is not None and hasattr(part, "config_class"):
            yield Place(role, path)


def _named(module: nn.Module) -> Iterator[Place]:
    for path, _ in module.named_modules():
        role = _NAMES.get(path.rpartition(".")[2])
        if role is not None:
            yield Place(role, path)


def callable_modules(module: nn.Module) -> Sequence[Place]:
    """Return every module that can be called."""
    return [
        Place("", path)
        for path, part in module.named_modules()
        if path and type(part).forward is not nn.Module.forward and _is_function(part)
    ]


def _is_function(part: nn.Module) -> bool:
    try:
        inspect.signature(part.forward)
    except (TypeError, ValueError):
        return False
    return True
