"""What `fakexport._torch.caching_allocator` relies on: the constants in the headers of torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fakexport._torch import caching_allocator

HEADER = Path(torch.__file__).parent / "include" / "c10" / "core" / "AllocatorConfig.h"


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r"kMinBlockSize = (\d+);", caching_allocator.BLOCK_BYTES),
        (r"kSmallSize = (\d+);", caching_allocator.SMALL_BYTES),
        (r"kSmallBuffer = (\d+);", caching_allocator.SMALL_SEGMENT_BYTES),
        (r"kMinLargeAlloc = (\d+);", caching_allocator.OWN_SEGMENT_BYTES),
        (r"large_segment_size_\{(\d+)\}|kLargeBuffer = (\d+);", caching_allocator.LARGE_SEGMENT_BYTES),
        (r"kRoundLarge = (\d+);", caching_allocator.ROUND_LARGE_BYTES),
    ],
)
def test_the_header_has_the_same_number(pattern: str, value: int) -> None:
    found = re.search(pattern, HEADER.read_text(encoding="utf-8"))

    assert found is not None
    assert [int(number) for number in found.groups() if number] == [value]
