"""Sums over the weights that an archive describes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fakexport.archive import DTYPE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fakexport.archive import TensorEntry


@dataclass(frozen=True)
class WeightTotals:
    """Numbers of the weights; one that has several names counts once.

    Args:
        count: Tensors.
        bytes: Bytes of their elements.
        by_dtype: Dtype to bytes, by name.
        by_device: Device to bytes, by name.
    """

    count: int
    bytes: int
    by_dtype: Mapping[str, int]
    by_device: Mapping[str, int]

    @classmethod
    def of(cls, tensors: Iterable[TensorEntry]) -> WeightTotals:
        by_dtype: Counter[str] = Counter()
        by_device: Counter[str] = Counter()
        count = 0
        for tensor in tensors:
            count += 1
            by_dtype[tensor.dtype] += weight_bytes(tensor)
            by_device[tensor.device] += weight_bytes(tensor)
        by_name = (dict(sorted(sizes.items())) for sizes in (by_dtype, by_device))
        return cls(count, by_dtype.total(), *by_name)


def weight_bytes(tensor: TensorEntry) -> int:
    """Return bytes of the elements of one weight."""
    return math.prod(tensor.shape) * DTYPE_BYTES[tensor.dtype]
