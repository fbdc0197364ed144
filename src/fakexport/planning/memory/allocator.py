"""A model of torch's caching allocator: the blocks it hands out, and the memory it requests from the driver.

Source: `c10/cuda/CUDACachingAllocator.cpp`: `round_size`, `get_allocation_size`, `get_free_block`,
`should_split`, `alloc_found_block`, `free_block`, `try_allocate_expandable_block`. The model assumes one
stream and the default settings. It also assumes that no request fails, so cached memory is never returned to
the driver.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from fakexport._torch.costs.operator_memory import (
    BLOCK_BYTES,
    LARGE_SEGMENT_BYTES,
    OWN_SEGMENT_BYTES,
    ROUND_LARGE_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)
from fakexport.planning.memory.liveness import Sizes


@dataclass(frozen=True)
class AllocatorPeak:
    """Peaks of an allocator: `torch.cuda.max_memory_allocated` and `torch.cuda.max_memory_reserved`."""

    allocated_bytes: int
    reserved_bytes: int


def allocator_peak(
    sizes: Sizes, device: str, *, expandable_segments: bool = False, workspace_bytes: int = 0
) -> AllocatorPeak:
    """Replay a program's allocations on a device through a model of torch's caching allocator.

    Weights and constants are requested first, in the program's order, followed by the inputs and the
    allocations of the run.

    Args:
        expandable_segments: Whether `PYTORCH_ALLOC_CONF=expandable_segments:True` is set.
        workspace_bytes: Bytes that libraries allocate before the first operator and never free.
    """
    own = sizes.liveness.on_devices[device]
    allocator = CachingAllocator(expandable_segments=expandable_segments)
    blocks: dict[int, _Block] = {}
    for index in own.held:
        allocator.allocate(sizes.bytes[index])
    allocator.allocate(workspace_bytes)
    for _, event in own.events:
        index = event if event >= 0 else ~event
        if not sizes.bytes[index]:
            continue
        if event >= 0:
            blocks[index] = allocator.allocate(sizes.bytes[index])
        else:
            allocator.free(blocks.pop(index))
    return AllocatorPeak(allocator.most_allocated, allocator.most_reserved)


@dataclass(slots=True, eq=False)
class _Block:
    """A part of a segment, linked to its neighbors. Addresses are only used to compare blocks."""

    address: int
    size: int
    pool: _Pool
    before: _Block | None = None
    after: _Block | None = None
    is_free: bool = False


class _Pool:
    """The free blocks of the small or the large size class, sorted by size and address."""

    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.page = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        self.last: _Block | None = None
        """The block at the end of the expandable segment."""
        self._free: list[tuple[int, int, _Block]] = []

    def add(self, block: _Block) -> None:
        block.is_free = True
        insort(self._free, (block.size, block.address, block))

    def remove(self, block: _Block) -> None:
        block.is_free = False
        del self._free[bisect_left(self._free, (block.size, block.address))]

    def smallest_of(self, size: int) -> _Block | None:
        """Return the smallest free block with at least `size` bytes, or None.

        The block at the end of an expandable segment counts as infinitely large.
        """
        start = bisect_left(self._free, (size,))
        found = [block for _, _, block in self._free[start : start + 2]]
        if len(found) == 2 and found[0] is self.last:
            return found[1]
        return found[0] if found else None


class CachingAllocator:
    """torch's caching allocator of one GPU. With expandable segments, each pool has one growing segment."""

    def __init__(self, *, expandable_segments: bool = False) -> None:
        self.allocated = self.most_allocated = self.reserved = self.most_reserved = 0
        self._is_expandable = expandable_segments
        self._small, self._large = _Pool(is_small=True), _Pool(is_small=False)
        self._next_address = 0

    def allocate(self, size: int) -> _Block:
        """Return a block for a request of `size` bytes. A request of 0 bytes returns an empty block."""
        if not size:
            return _Block(0, 0, self._small)
        size = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        pool = self._small if size <= SMALL_BYTES else self._large
        block = pool.smallest_of(size)
        if block is not None:
            pool.remove(block)
        else:
            block = self._grown(pool, size) if self._is_expandable else self._segment(pool, size)
        if self._is_split(block, size):
            self._split(block, size)
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return block

    def free(self, block: _Block) -> None:
        """Put a block back into the cache and merge it with free neighbors."""
        self.allocated -= block.size
        pool = block.pool
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                pool.remove(other)
                block = self._joined(*((other, block) if other is block.before else (block, other)))
        pool.add(block)

    def _is_split(self, block: _Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.is_small or self._is_expandable:
            return rest >= BLOCK_BYTES
        return rest > SMALL_BYTES

    def _segment(self, pool: _Pool, size: int) -> _Block:
        if pool.is_small:
            taken = SMALL_SEGMENT_BYTES
        elif size < OWN_SEGMENT_BYTES:
            taken = LARGE_SEGMENT_BYTES
        else:
            taken = -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
        return self._taken(pool, taken)

    def _taken(self, pool: _Pool, size: int) -> _Block:
        self.reserved += size
        self.most_reserved = max(self.most_reserved, self.reserved)
        block = _Block(self._next_address, size, pool)
        # Leave a gap, so that two segments are never neighbors.
        self._next_address += size + 1
        return block

    def _grown(self, pool: _Pool, size: int) -> _Block:
        """Map whole pages for `size` bytes at the end of the pool's segment, and return the last block."""
        end = pool.last
        free = end.size if end is not None and end.is_free else 0
        more = self._taken(pool, -(-(size - free) // pool.page) * pool.page)
        if end is not None:
            more.address = end.address + end.size
            more.before, end.after = end, more
        pool.last = more
        if end is None or not end.is_free:
            return more
        pool.remove(end)
        return self._joined(end, more)

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size - size, block.pool, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        if block.pool.last is block:
            block.pool.last = rest
        block.pool.add(rest)

    def _joined(self, first: _Block, second: _Block) -> _Block:
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        if first.pool.last is second:
            first.pool.last = first
        return first
