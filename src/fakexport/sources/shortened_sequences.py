"""Encoders that shorten their sequence from layer to layer, and get a mask of its first length in a trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fakexport._torch.patching import Patches

_INFORMER = "transformers.models.informer.modeling_informer"
_MAKING = "create_bidirectional_mask"


@contextmanager
def shortened_sequences(module: nn.Module) -> Iterator[None]:
    """Enter a context in which Informer makes no mask where it was given none, as eager does.

    Its encoder halves the sequence after each layer, and passes one mask, of the whole sequence, to all. In
    eager mode there is none, since nothing is masked. In a trace transformers makes a mask of ones, which
    fits the first layer alone.

    Args:
        module: The model.
    Source: transformers 5.17 to 5.23, `masking_utils.py:_ignore_bidirectional_mask_sdpa`.
    """
    models: Any = sys.modules.get(_INFORMER)
    making = getattr(models, _MAKING, None)
    if making is None or all(type(part).__module__ != _INFORMER for part in module.modules()):
        yield
        return

    def made(*, attention_mask: Any, **others: Any) -> Any:
        return None if attention_mask is None else making(attention_mask=attention_mask, **others)

    with Patches({(models, _MAKING): made}):
        yield
