"""Causal masks that a trace keeps and eager mode drops, where the attention is not causal without one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fakexport.capture.python_effects import calling_span
from fakexport.diagnostics import Span

_MASKS, _SKIP = "transformers.masking_utils", "allow_is_causal_skip"
_ATTENTION = "transformers.modeling_utils"
# Its place behind the module: query, key, value, mask.
_MASK = 3


@dataclass(frozen=True)
class KeptMask:
    """A causal mask that the program keeps and eager mode drops where nothing is padded.

    Args:
        module_path: Path of the attention module that gets it.
        span: Where the model calls attention.
    """

    module_path: str
    span: Span | None


@contextmanager
def watch_masks() -> Iterator[dict[nn.Module, Span | None]]:
    """Enter a context around a trace in which such masks are noted.

    With eager mode's `sdpa`, transformers passes no mask where nothing is padded, and relies on `is_causal`
    of the attention module. Where that is False (ColPali, AIMv2), tokens then see those after them, which
    they do not with a padded row, with `attn_implementation="eager"`, or in a program. A trace cannot know
    whether something is padded.

    Yields:
        The attention modules that got such a mask so far, and the lines that call attention.
    Source: transformers 5.23, `masking_utils.py:_ignore_causal_mask_sdpa`,
    `integrations/sdpa_attention.py:sdpa_attention_forward`.
    """
    found: dict[nn.Module, Span | None] = {}
    masks = _functions(_MASKS, "ALL_MASK_ATTENTION_FUNCTIONS")
    attention = _functions(_ATTENTION, "ALL_ATTENTION_FUNCTIONS")
    if masks is None or attention is None:
        yield found
        return
    make, attend = masks["sdpa"], attention["sdpa"]
    droppable: list[Any] = []  # Kept, so that no other mask gets the identity of one that is gone.

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
            found[layer] = calling_span(sys._getframe(1))
        return attend(layer, *args, **options)

    masks["sdpa"], attention["sdpa"] = made, attended
    try:
        yield found
    finally:
        masks["sdpa"], attention["sdpa"] = make, attend


def kept_masks_of(module: nn.Module, found: Mapping[nn.Module, Span | None]) -> tuple[KeptMask, ...]:
    """Return what was noted, in the order of the modules of a model."""
    return tuple(KeptMask(path, found[part]) for path, part in module.named_modules() if part in found)


def _functions(module: str, name: str) -> MutableMapping[str, Any] | None:
    """Return what transformers has for each implementation of attention; None where it is not imported."""
    functions = getattr(sys.modules.get(module), name, None)
    return getattr(type(functions), "_global_mapping", None)


def _is_whole(options: dict[str, Any]) -> bool:
    """Return whether a mask is one that eager mode may drop: of a prompt, without a window that cuts it.

    Sizes that vary are compared as text: a comparison of their own would become a condition of the program.
    """
    queries, keys, window = options["q_length"], options["kv_length"], options.get("local_size")
    if window is not None and not (type(keys) is int and keys < window):
        return False
    return str(queries) == str(keys) != "1"
