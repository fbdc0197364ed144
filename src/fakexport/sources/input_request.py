"""What example inputs are derived from: a module of transformers, its config, and the wanted sizes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# Configs inside a config. The text part is last: sizes of images and sounds are asked for by name.
_PARTS = (
    "vlm_config",
    "vision_config",
    "image_config",
    "audio_config",
    "speech_config",
    "encoder",
    "encoder_config",
    "audio_encoder",
    "audio_encoder_config",
    "asr_config",
    "backbone_config",
    "thinker_config",
    "text_config",
    "decoder",
    "text_encoder",
    "vq_config",
)


class Underivable(Exception):
    """An input cannot be told from the config; the message is a clause that says why."""


@dataclass(frozen=True)
class InputRequest:
    """Asks for example inputs of one module. All tensors are made in the caller's fake mode.

    Args:
        module: A model of transformers.
        device: Device of every input.
        dtype: Dtype of the floating-point inputs.
        batch: First size of every input; 2, since `torch.export` fixes sizes of 0 and 1.
        sequence: Number of text tokens.
    """

    module: nn.Module
    device: str
    dtype: torch.dtype
    batch: int = 2
    sequence: int = 16

    @property
    def config(self) -> Any:
        """The module's config."""
        return self.module.config

    @property
    def text_config(self) -> Any:
        """The part of the config that describes text."""
        return self.config.get_text_config(decoder=True)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of `forward` by name, without `*args` and `**kwargs`."""
        starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = inspect.signature(self.module.forward).parameters
        return {name: parameter for name, parameter in parameters.items() if parameter.kind not in starred}

    @property
    def main_input(self) -> str:
        """Name of the input that the model is about: `input_ids`, `pixel_values`, `input_features`."""
        name = getattr(self.module, "main_input_name", "input_ids")
        return name if isinstance(name, str) else str(name[0])

    def setting(self, *names: str, default: Any = None) -> Any:
        """Return the first setting that the config, or else a nested config, has under one of the names."""
        for config in _with_parts(self.config):
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    return value
        return default

    def encoder_parameters(self, method: str) -> Mapping[str, bool] | None:
        """Return the parameters of a method of the model or its parts, and whether it requires them."""
        found = [getattr(type(part), method, None) for part in self.module.modules()]
        parameters = [
            parameter
            for each in found
            if each is not None
            for parameter in inspect.signature(each).parameters.values()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if not parameters:
            return None
        return {p.name: p.default is p.empty for p in parameters}

    def floats(self, *shape: int) -> torch.Tensor:
        """Return a floating-point tensor. It is not zero: models skip images that are."""
        return torch.full(shape, 0.5, device=self.device, dtype=self.dtype)

    def ids(self, *shape: int, value: int = 0) -> torch.Tensor:
        """Return an int64 tensor of one value."""
        return torch.full(shape, value, device=self.device, dtype=torch.long)

    def values(self, real: torch.Tensor) -> torch.Tensor:
        """Return a tensor with the values of a real one."""
        return torch.tensor(real.tolist(), device=self.device, dtype=real.dtype)


def _with_parts(config: Any) -> Iterator[Any]:
    yield config
    for name in _PARTS:
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "model_type"):
            yield from _with_parts(part)
