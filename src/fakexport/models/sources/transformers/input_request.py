"""A request for example inputs: a transformers module, its config, and the sizes of the inputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# Names of nested configs. Text configs are last, so that sizes of images and audio are found first.
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
    """An input cannot be derived from the config. The message is a clause with the reason."""


@dataclass(frozen=True)
class InputRequest:
    """A request for example inputs of one module. All tensors are created in the caller's fake mode.

    The default batch is 2, because `torch.export` specializes on sizes of 0 and 1. `sequence` is the number
    of text tokens.
    """

    module: nn.Module
    device: str
    dtype: torch.dtype
    batch: int = 2
    sequence: int = 16

    @classmethod
    def of(
        cls, module: nn.Module, device: str, dtype: torch.dtype | None, batch: int = 2, sequence: int = 16
    ) -> InputRequest:
        """Create a request. A dtype of None means the dtype of the module's parameters."""
        own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
        return cls(module, device, dtype or own, batch, sequence)

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
        """Name of the model's main input: `input_ids`, `pixel_values`, `input_features`."""
        name = getattr(self.module, "main_input_name", "input_ids")
        return name if isinstance(name, str) else str(name[0])

    def setting(self, *names: str, default: Any = None) -> Any:
        """Return the first of these settings that the config or a nested config has, or the default."""
        for config in _with_parts(self.config):
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    return value
        return default

    def around_media(self, role: str) -> tuple[list[int], list[int]]:
        """Return the start and end tokens of an image or audio clip (Qwen); 0 for an undefined one."""
        ids = [getattr(self.config, f"{role}_{name}_token_id", None) for name in ("start", "end")]
        found = [[number if isinstance(number, int) else 0] for number in ids]
        return (found[0], found[1]) if any(isinstance(number, int) for number in ids) else ([], [])

    def floats(self, *shape: int) -> torch.Tensor:
        """Return a floating point tensor without zeros: models skip images of zeros."""
        return torch.full(shape, 0.5, device=self.device, dtype=self.dtype)

    def ids(self, *shape: int, value: int = 0) -> torch.Tensor:
        """Return an int64 tensor filled with one value."""
        return torch.full(shape, value, device=self.device, dtype=torch.long)

    def values(self, real: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor with the values of a real one."""
        return torch.tensor(real.tolist(), device=self.device, dtype=real.dtype)


def _with_parts(config: Any) -> Iterator[Any]:
    yield config
    for name in _PARTS:
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "model_type"):
            yield from _with_parts(part)
