"""The sizes by which torch's caching allocator of GPU memory works, in bytes. Seen on torch 2.11 to 2.13.

Source: `c10/core/AllocatorConfig.h`.
"""

from __future__ import annotations

BLOCK_BYTES = 512
"""Every request is rounded up to a multiple of it: `kMinBlockSize`."""

SMALL_BYTES = 1 << 20
"""The greatest request that the pool of small blocks serves: `kSmallSize`."""

SMALL_SEGMENT_BYTES = 2 << 20
"""What the pool of small blocks asks the driver for at a time: `kSmallBuffer`."""

OWN_SEGMENT_BYTES = 10 << 20
"""From this size on a request gets a segment of its own size: `kMinLargeAlloc`."""

LARGE_SEGMENT_BYTES = 20 << 20
"""What smaller requests to the pool of large blocks ask the driver for: `large_segment_size_`."""

ROUND_LARGE_BYTES = 2 << 20
"""A segment of its own is a multiple of it: `kRoundLarge`."""
