"""Inputs that say of each token of text what it is, or which images it sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fakexport.sources.input_request import InputRequest

# Types whose processor tells the prompt (0) from what follows; a prompt is read in both directions. Without
# it, eager mode drops a mask of ones and reads in both directions too; a trace cannot drop it.
_PROMPTED = frozenset({"paligemma", "colpali"})

_KINDS = {"vision": 1, "audio": 3}


def companions_of_tokens(
    request: InputRequest, role: str, is_placeholder: torch.Tensor, inputs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Return what a processor returns next to the ids.

    Args:
        request: Request of the model.
        role: `vision` or `audio`.
        is_placeholder: 1 where a token stands for an image or a sound, 0 elsewhere.
        inputs: The other inputs, of a sound or image among them.
    """
    parameters, found = request.parameters, {}
    batch, length = is_placeholder.shape
    if request.config.model_type in _PROMPTED:
        found["token_type_ids"] = torch.zeros_like(is_placeholder)
    # Tokens of one image see each other (Gemma 3).
    elif "token_type_ids" in parameters:
        found["token_type_ids"] = is_placeholder.clone()
    if "mm_token_type_ids" in parameters:
        kinds = is_placeholder * _KINDS[role]
        earlier = inputs.get("mm_token_type_ids")
        if earlier is not None:
            kinds[:, length - earlier.shape[1] :] = earlier
        found["mm_token_type_ids"] = kinds
    if "image_embeds_position_mask" in parameters:
        found["image_embeds_position_mask"] = is_placeholder.bool()
    if "cross_attention_mask" in parameters and "aspect_ratio_mask" in inputs:
        tiles = inputs["aspect_ratio_mask"].shape[-1]
        found["cross_attention_mask"] = request.ids(batch, length, 1, tiles, value=1)
    # That of FLAVA is of the patches of an image, and not of the images that a token sees.
    if "image_attention_mask" in parameters and request.config.model_type != "flava":
        found["image_attention_mask"] = request.ids(batch, length, 1, value=1)
    return found
