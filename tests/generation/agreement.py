"""Tokens of a bundle next to those of `transformers.generate`, for one family."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.generation import GenerationMixin

import fakexport as fe
from tests.generation.families import FIRST, IMAGE_TOKEN, VOCABULARY, Family

NEW_TOKENS = 24
LENGTHS = (5, 21)
"""Not the length of the export, which is 16; the longer one exceeds every window."""


@dataclass(frozen=True)
class Agreement:
    """What came out.

    Args:
        found, expected: Tokens by prompt.
    """

    found: list[list[int]]
    expected: list[list[int]]

    @property
    def is_equal(self) -> bool:
        return self.found == self.expected

    @property
    def variety(self) -> int:
        """Return the number of different tokens in the sequence with the most of them."""
        return max(len(set(row)) for row in self.expected)


def exported(folder: Path, *, dynamic: str | None = None, **options: Any) -> fe.Bundle:
    """Return the weight-less bundle of the model in a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fe.PartialExportWarning)
        programs = {
            call: fe.export(f"hf:{folder}", workload=call, dynamic_shapes=dynamic, **options)
            for call in ("prefill", "decode")
        }
    fe.save_bundle(programs, folder / "model.pt2")
    return fe.load_bundle(folder / "model.pt2")


def prompt(length: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + length)
    return torch.randint(FIRST, VOCABULARY, (batch, length), generator=generator)


def eager(model: nn.Module, ids: torch.Tensor | None, **inputs: Any) -> list[list[int]]:
    """Return the new tokens that transformers generates greedily."""
    model_: Any = model
    if ids is None:
        # The start alone: Whisper's own generate adds tokens for the language and the task.
        inputs["decoder_input_ids"] = torch.tensor([[model_.config.decoder_start_token_id]])
    else:
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **inputs}
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "num_beams": 1, **inputs}
    with torch.no_grad():
        made = GenerationMixin.generate(model_, **options)
    skipped = 1 if ids is None or model_.config.is_encoder_decoder else ids.shape[1]
    return made[:, skipped:].tolist()


def agreement(family: Family, folder: Path, **options: Any) -> Agreement:
    """Return the tokens of one family after prompts of several lengths."""
    model: Any = family.saved(folder)
    bundle = exported(folder, **options)
    generator = fe.Generator(fe.bind(bundle, folder))
    found: list[list[int]] = []
    expected: list[list[int]] = []
    numbers = torch.Generator().manual_seed(1)
    for length in LENGTHS:
        image = torch.full((1, family.image_tokens), IMAGE_TOKEN)
        ids = torch.cat([image, prompt(length)], dim=1) if family.reads_text else None
        inputs = family.inputs(numbers)
        parameters = inspect.signature(model.forward).parameters
        if ids is not None and family.image_tokens and "token_type_ids" in parameters:
            inputs["token_type_ids"] = (ids == IMAGE_TOKEN).long()  # As its processor gives them.
        found += map(list, generator(ids, max_new_tokens=NEW_TOKENS, inputs=inputs).tokens)
        expected += eager(model, ids, **inputs)
    return Agreement(found, expected)
