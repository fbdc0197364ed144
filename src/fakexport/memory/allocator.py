"""A model of torch's caching allocator: what requests make it hand out, and take from the driver.

Source: `c10/cuda/CUDACachingAllocator.cpp`: `round_size`, `get_allocation_size`, `get_free_block`,
`should_split`, `alloc_found_block`, `free_block`, `try_allocate_expandable_block`. One stream and the default
settings; no request fails, so nothing that is cached goes back to the driver.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from fakexport._torch.caching_allocator import (
    BLOCK_BYTES,
    LARGE_SEGMENT_BYTES,
    OWN_SEGMENT_BYTES,
    ROUND_LARGE_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)
from fakexport.memory.peak import Sizes


@dataclass(frozen=True)
class AllocatorPeak:
    """The most bytes that the allocator of a device hands out at once and takes from the driver.

    These are `torch.cuda.max_memory_allocated` and `torch.cuda.max_memory_reserved`.
    """

    device: str
    allocated_bytes: int
    reserved_bytes: int


def allocator_peak(
    sizes: Sizes, device: str, *, expandable_segments: bool = False, workspace_bytes: int = 0
) -> AllocatorPeak:
    """Replay what a program takes and gives back on a device through a model of torch's caching allocator.

    Weights and constants are requested first, in the program's order, then inputs, then what the run takes.

    Args:
        sizes: The program's storages at chosen sizes.
        device: One of `sizes.liveness.devices`.
        expandable_segments: As in `PYTORCH_ALLOC_CONF=expandable_segments:True`.
        workspace_bytes: What libraries take through the allocator before the first operator, and keep.
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
    return AllocatorPeak(device, allocator.most_allocated, allocator.most_reserved)


@dataclass(slots=True, eq=False)
class _Block:
    """A piece of a segment, between its neighbors. Only the order of addresses means anything."""

    address: int
    size: int
    pool: _Pool
    before: _Block | None = None
    after: _Block | None = None
    is_free: bool = False


class _Pool:
    """The free blocks of one size class, by size and address."""

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
        """Return the smallest free block of at least a size.

        The end of an expandable segment counts as endless, so that any other is taken before it.
        """
        start = bisect_left(self._free, (size,))
        found = [block for _, _, block in self._free[start : start + 2]]
        if len(found) == 2 and found[0] is self.last:
            return found[1]
        return found[0] if found else None


class CachingAllocator:
    """torch's allocator for one GPU; with `expandable_segments` each pool is one segment that grows."""

    def __init__(self, *, expandable_segments: bool = False) -> None:
        self.allocated = self.most_allocated = self.reserved = self.most_reserved = 0
        self._is_expandable = expandable_segments
        self._small, self._large = _Pool(is_small=True), _Pool(is_small=False)
        self._next_address = 0

    def allocate(self, size: int) -> _Block:
        """Hand out a block for a request of so many bytes; none is taken for 0."""
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
        """Take a block back into the cache, joined with free neighbors."""
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
        # A gap, so that two segments are never neighbors.
        self._next_address += size + 1
        return block

    def _grown(self, pool: _Pool, size: int) -> _Block:
        """Return a block at the end of the pool's segment, for which whole pages are mapped."""
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
        """Return the first of two neighbors, grown by the second."""
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        if first.pool.last is second:
            first.pool.last = first
        return first
