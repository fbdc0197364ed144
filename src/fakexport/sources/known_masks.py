"""In eager mode transformers looks at the values of a mask, and drops one that masks nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fakexport._torch.fake_tensors import FakeTensorMode
from fakexport.history import UnreplayableRead, recording, value_of, withhold_value

_MASKS = "transformers.masking_utils"


@contextmanager
def known_masks(mode: FakeTensorMode, inputs: Iterable[torch.Tensor]) -> Iterator[None]:
    """Enter a context in which transformers drops masks on fakes as it does in a real run.

    It keeps every mask of fakes, as in a trace. Here it reads those that the model makes itself, such as
    `torch.ones` for a decoder. What depends on an input is kept.

    Args:
        inputs: What the caller passes. Their values mean nothing, and are unknown in the block.
    """
    for tensor in inputs:
        withhold_value(tensor, "it is an input")
    masks: Any = sys.modules.get(_MASKS)
    if masks is None or not hasattr(masks, "is_tracing"):
        yield
        return
    own = masks.is_tracing

    def is_tracing(tensor: Any = None) -> bool:
        return bool(own(tensor)) and not (isinstance(tensor, torch.Tensor) and _is_known(tensor))

    masks.is_tracing = is_tracing
    try:
        with mode, recording(mode):
            yield
    finally:
        masks.is_tracing = own


def _is_known(tensor: torch.Tensor) -> bool:
    try:
        value_of(tensor)
    except UnreplayableRead:
        return False
    return True
