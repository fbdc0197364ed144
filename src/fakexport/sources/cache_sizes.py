"""Which sizes of the tensors of a cache are always the same, as far as one more token shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

_ATTENDED = re.compile(r"(?P<layers>.+)_(?:keys|values)")
_ENCODED = "cross_attention_cache_"
_NUMBERS = re.compile(r"\d+")


def cache_sizes(
    before: Mapping[str, torch.Tensor],
    after: Mapping[str, torch.Tensor],
    *,
    is_batch_dynamic: bool,
    is_static: bool = False,
) -> dict[str, tuple[str | None, ...]]:
    """Return a label for each dimension of the keys and values; sizes with the same label are equal.

    Layers that grow by one token remember the same ones, so their lengths are one size, of keys and of
    values. What an encoder computed does not grow, and its length is one size too where all layers have the
    same. A dimension without a label is constant. What else a cache has is left out.

    Args:
        before: The tensors of a cache by name, `[batch, heads, length, width]` for keys and values.
        after: The same after one more token.
        is_batch_dynamic: Whether the first size varies.
        is_static: Whether the layers that grow have their whole length from the start.
    """
    found: dict[str, tuple[str | None, ...]] = {}
    encoded = {tensor.shape[2:3] for name, tensor in before.items() if _ENCODED in name}
    for name, tensor in before.items():
        match = _ATTENDED.fullmatch(name)
        if match is None or tensor.dim() != 4:
            continue
        is_encoded = _ENCODED in name
        is_constant = is_static and not is_encoded
        grown = tuple(int(b) - int(a) for a, b in zip(tensor.shape, after[name].shape, strict=True))
        if grown != ((0, 0, 0, 0) if is_constant or is_encoded else (0, 0, 1, 0)):
            continue
        if is_encoded and len(encoded) > 1:
            continue
        group = _NUMBERS.sub("", match["layers"])
        batch = f"{group}, batch" if is_batch_dynamic else None
        length = f"{group}, {tensor.shape[2]} tokens" if not is_constant else None
        found[name] = (batch, None, length, None)
    return found
