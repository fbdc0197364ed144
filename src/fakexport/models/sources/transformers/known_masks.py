"""Drop fake masks that have no effect. In eager mode, transformers detects such masks from their values."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fakexport._torch.emulation.fake_tensors import FakeTensorMode
from fakexport.emulation.history import known_value, recording, withhold_value

_MASKS = "transformers.masking_utils"


@contextmanager
def known_masks(mode: FakeTensorMode, inputs: Iterable[torch.Tensor]) -> Iterator[None]:
    """Enter a context in which transformers drops fake masks that have no effect, as it does in a real run.

    By default, transformers keeps every fake mask, as in a trace. In this context, it reads the values of
    masks that the model itself creates, such as `torch.ones` for a decoder. Masks that depend on an input are
    kept.

    Args:
        inputs: The caller's inputs. Their values are meaningless, so they are marked as unknown.
    """
    for tensor in inputs:
        withhold_value(tensor, "it is an input")
    masks: Any = sys.modules.get(_MASKS)
    if masks is None or not hasattr(masks, "is_tracing"):
        yield
        return
    own = masks.is_tracing

    def is_tracing(tensor: Any = None) -> bool:
        return bool(own(tensor)) and (not isinstance(tensor, torch.Tensor) or known_value(tensor) is None)

    masks.is_tracing = is_tracing
    try:
        with mode, recording(mode):
            yield
    finally:
        masks.is_tracing = own
