"""OmDet-Turbo keeps the embeddings of texts by their token ids, which have no values in a trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fakexport._torch.patching import Patches

_OMDET = "transformers.models.omdet_turbo.modeling_omdet_turbo"
_CACHES = ("language_cache_class", "language_cache_prompt")


@contextmanager
def uncached_texts(module: nn.Module) -> Iterator[None]:
    """Enter a context in which OmDet-Turbo encodes every text, as eager does with texts that are new to it.

    Args:
        module: The model. Its caches stay as they are.
    Source: transformers 5.17 to 5.23, `models/omdet_turbo/modeling_omdet_turbo.py:_get_cache_key_at_index`.
    """
    models: Any = sys.modules.get(_OMDET)
    owner: Any = getattr(models, "OmDetTurboPreTrainedModel", None)
    found = [] if owner is None else [part for part in module.modules() if hasattr(part, _CACHES[0])]
    if not found:
        yield
        return
    never_seen = staticmethod(lambda input_ids, attention_mask, index: object())
    kept = [(part, name, getattr(part, name)) for part in found for name in _CACHES]
    with Patches({(owner, "_get_cache_key_at_index"): never_seen}):
        try:
            for part, name, cache in kept:
                setattr(part, name, models.OmDetTurboLRUCache(cache.capacity))
            yield
        finally:
            for part, name, cache in kept:
                setattr(part, name, cache)
