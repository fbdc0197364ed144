"""The families of models that generation is tried with: small ones, whose tokens differ."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tests.settings_files import read_settings

VOCABULARY = 96
FIRST = 5
"""Smaller tokens are special."""
IMAGE_TOKEN = 4


def _image(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, 16, 16, generator=generator)}


def _sound(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_features": 3 * torch.randn(1, 8, 32, generator=generator)}


def _masked_sound(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """A sound of 24 of 32 frames, which the encoder makes 6 features of."""
    return {**_sound(generator), "feature_attention_mask": (torch.arange(32)[None] < 24).long()}


def _patches(generator: torch.Generator) -> dict[str, torch.Tensor]:
    places = torch.arange(32.0).reshape(1, 16, 2) % 7 + 1  # Row and column of each patch.
    pixels = torch.randn(1, 16, 48, generator=generator)
    return {"flattened_patches": torch.cat([places, pixels], dim=2)}


@dataclass(frozen=True)
class Family:
    """A kind of model.

    Args:
        name: The model type, with what is special about it.
        model_class: In transformers.
        config: Settings of its config.
        kind: What is special, for the table.
        gain: What the weights are multiplied with, so that scores differ.
        level: `slow`: in CI; `exhaustive`.
        inputs: What prefill takes besides text.
        image_tokens: Placeholder tokens of the image, which go before the text.
        reads_text: Whether it takes a prompt of tokens.
    """

    name: str
    model_class: str
    config: Mapping[str, Any]
    kind: str
    gain: float = 6.0
    level: str = "exhaustive"
    inputs: Callable[[torch.Generator], dict[str, torch.Tensor]] = lambda generator: {}
    image_tokens: int = 0
    reads_text: bool = True

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Family:
        """Return a family of `families.json`."""
        rest = {name: value for name, value in fields.items() if name not in ("class", "config", "inputs")}
        inputs = {"inputs": _INPUTS[fields["inputs"]]} if "inputs" in fields else {}
        return cls(model_class=fields["class"], config=fields["config"], **rest, **inputs)

    @property
    def type(self) -> Any:
        return getattr(transformers, self.model_class)

    def build(self) -> nn.Module:
        """Return the model with random weights, the same in each process."""
        torch.manual_seed(0)
        model = self.type(self.type.config_class(**copy.deepcopy(dict(self.config)))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1 and parameter.requires_grad:  # Marian does not save its tables.
                    parameter.mul_(self.gain)
        return model

    def saved(self, folder: Path) -> nn.Module:
        """Return the model, after writing its config and weights as `save_pretrained` does."""
        model = self.build()
        model.save_pretrained(folder)
        return model


_INPUTS = {"image": _image, "sound": _sound, "masked_sound": _masked_sound, "patches": _patches}
_SETTINGS = read_settings(Path(__file__).with_suffix(".json"))
FAMILIES = tuple(map(Family.of, _SETTINGS["families"]))
NAMED = {family.name: family for family in FAMILIES}
