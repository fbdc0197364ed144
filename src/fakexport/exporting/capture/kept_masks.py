"""Detect causal masks that the program keeps, but eager mode drops although attention needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

_MASKS, _SKIP = "transformers.masking_utils", "allow_is_causal_skip"
_ATTENTION = "transformers.modeling_utils"
# Position of the mask among the arguments after the module: query, key, value, mask.
_MASK = 3


@contextmanager
def masks_watched(note: Callable[[nn.Module, FrameType], None]) -> Iterator[None]:
    """Enter a context that calls `note` for each causal mask that attention needs, but eager mode would drop.

    With `sdpa` in eager mode, transformers passes no mask for inputs without padding, and relies on
    `is_causal` of the attention module. If `is_causal` is False (ColPali, AIMv2), tokens then attend to later
    tokens. A mask prevents this if a row of the inputs is padded, if `attn_implementation` is "eager", and in
    an exported program, because a trace cannot know whether inputs are padded.

    Args:
        note: Function that takes the attention module that received the mask, and the frame that called it.
    Source: transformers 5.23, `masking_utils.py:_ignore_causal_mask_sdpa`,
    `integrations/sdpa_attention.py:sdpa_attention_forward`.
    """
    masks = _functions(_MASKS, "ALL_MASK_ATTENTION_FUNCTIONS")
    attention = _functions(_ATTENTION, "ALL_ATTENTION_FUNCTIONS")
    if masks is None or attention is None:
        yield
        return
    make, attend = masks["sdpa"], attention["sdpa"]
    droppable: list[Any] = []  # Kept alive, so that no other mask reuses its id.

    def made(*args: Any, **options: Any) -> Any:
        mask = make(*args, **options)
        if options.get(_SKIP) and isinstance(mask, torch.Tensor) and _is_whole(options):
            droppable.append(mask)
        return mask

    def attended(layer: nn.Module, *args: Any, **options: Any) -> Any:
        mask = args[_MASK] if len(args) > _MASK else options.get("attention_mask")
        is_causal = options.get("is_causal")
        is_causal = getattr(layer, "is_causal", True) if is_causal is None else is_causal
        if is_causal is False and any(mask is each for each in droppable):
            note(layer, sys._getframe(1))
        return attend(layer, *args, **options)

    masks["sdpa"], attention["sdpa"] = made, attended
    try:
        yield
    finally:
        masks["sdpa"], attention["sdpa"] = make, attend


def _functions(module: str, name: str) -> MutableMapping[str, Any] | None:
    """Return transformers' functions by attention implementation, or None if the module is not imported."""
    functions = getattr(sys.modules.get(module), name, None)
    return getattr(type(functions), "_global_mapping", None)


def _is_whole(options: dict[str, Any]) -> bool:
    """Return whether eager mode may drop a mask: one for a whole prompt, without an attention window.

    Symbolic sizes are compared as text, because comparing them directly would add a guard to the program.
    """
    queries, keys, window = options["q_length"], options["kv_length"], options.get("local_size")
    if window is not None and not (type(keys) is int and keys < window):
        return False
    return str(queries) == str(keys) != "1"
