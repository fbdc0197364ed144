"""Inputs with values: those that a source derives, in other sizes, with tokens, pixels and padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .sizes import Shapes

__all__ = ["real_inputs"]

# Places of patches and of what is between them, kinds of questions and languages, of which 0 is one.
_NO_TOKENS = ("_position_ids", "interp_indices", "_type_ids", "lang_ids")
FIRST_TOKEN = 3  # After those that mean padding, start and end in most vocabularies.


def real_inputs(
    template: Mapping[str, torch.Tensor], shapes: Shapes, config: Any, *, seed: int, is_padded: bool
) -> dict[str, torch.Tensor]:
    """Tensors of these shapes with values as a model sees them.

    Args:
        template: What the source derives for a real module; zeros, and one float everywhere, stand for values
            that mean nothing. Other numbers (placeholder tokens, masks) stay.
        shapes: The wanted ones. A size that grows repeats what stands last.
        config: Of the model, with its vocabulary and its special tokens; None where no input is text.
        seed: Of the values.
        is_padded: Whether the last row of `attention_mask` ends in padding.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor(_plain_tokens(config))
    inputs = {}
    for name, tensor in template.items():
        value = _resized(tensor, shapes[name])
        if name.endswith("mask"):
            if is_padded and name == "attention_mask" and value.dim() == 2:
                value[-1, -max(1, value.shape[1] // 4) :] = 0
        elif value.dtype.is_floating_point:
            value = _numbers(name, value, generator)
        elif value.dtype is torch.long and not name.endswith(_NO_TOKENS):
            drawn = tokens[torch.randint(len(tokens), value.shape, generator=generator)]
            if name == "audio_input_ids" and (codes := getattr(config, "codebook_size", None)) is not None:
                drawn %= codes
            value = torch.where(value == 0, drawn, value)
            question = getattr(config, "question_token_id", None)
            if name == "input_ids" and question is not None:  # Splinter looks for it in each row.
                value[:, :1] = question
        inputs[name] = value
    return inputs


def _resized(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    for dim, (old, new) in enumerate(zip(tensor.shape, shape, strict=True)):
        tensor = tensor.index_select(dim, torch.arange(new).clamp(max=old - 1))
    return tensor.clone()


def _numbers(name: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if name in ("visual_pos", "bbox"):  # In parts of the image.
        return torch.rand(value.shape, generator=generator).to(value.dtype)
    drawn = torch.randn(value.shape, generator=generator).to(value.dtype)
    if name == "flattened_patches":  # The first two columns say where a patch lies.
        drawn[..., 0] = torch.arange(1, value.shape[1] + 1) // 4
        drawn[..., 1] = torch.arange(1, value.shape[1] + 1) % 4
    is_filled = bool((value == value.flatten()[:1]).all())
    return drawn if is_filled else torch.where(value == 0, drawn, value)


def _plain_tokens(config: Any) -> list[int]:
    settings = [] if config is None else list(_settings(config.to_dict()))
    sizes = [v for name, v in settings if name.endswith("vocab_size") and isinstance(v, int) and v > 0]
    special = {v for name, v in settings if "token_i" in name and isinstance(v, int)}
    size = min(sizes, default=2 * FIRST_TOKEN)
    return [token for token in range(FIRST_TOKEN, size) if token not in special] or [min(1, size - 1)]


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _settings(value)
        else:
            yield str(name), value
