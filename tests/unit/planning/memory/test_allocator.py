"""The model of the caching allocator gives what torch's sources and documentation say of each size."""

import random
from itertools import pairwise

import pytest

from fakexport.planning.memory.allocator import CachingAllocator

MIB = 1 << 20


def _reserved(*sizes: int, expandable_segments: bool = False) -> int:
    allocator = CachingAllocator(expandable_segments=expandable_segments)
    for size in sizes:
        allocator.allocate(size)
    return allocator.reserved


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # The rest of a segment is kept where it is 1 MiB or less.
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
    ],
)
def test_one_request_takes_a_segment(size, allocated, reserved):
    allocator = CachingAllocator()

    allocator.allocate(size)

    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_small_requests_share_a_segment():
    assert _reserved(*[512 << 10] * 4) == 2 * MIB
    assert _reserved(*[512 << 10] * 5) == 4 * MIB


def test_medium_requests_share_a_segment():
    assert _reserved(*[5 * MIB] * 4) == 20 * MIB
    assert _reserved(*[5 * MIB] * 5) == 40 * MIB


def test_what_is_given_back_is_used_again():
    allocator = CachingAllocator()
    first = allocator.allocate(64 * MIB)
    allocator.free(first)

    allocator.allocate(30 * MIB)
    allocator.allocate(34 * MIB)

    assert (allocator.reserved, allocator.most_allocated) == (64 * MIB, 64 * MIB)


def test_fragments_that_are_not_neighbors_serve_no_larger_request():
    sizes = [4 * MIB] * 5
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size) for size in sizes]
    allocator.free(blocks[0])
    allocator.free(blocks[2])

    allocator.allocate(8 * MIB)

    assert allocator.reserved == 40 * MIB


def test_neighbors_are_joined():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]
    for index in (1, 3, 2):
        allocator.free(blocks[index])

    allocator.allocate(12 * MIB)

    assert allocator.reserved == 20 * MIB


def test_an_expandable_segment_grows_by_pages():
    assert _reserved(30 * MIB, expandable_segments=True) == 40 * MIB
    assert _reserved(30 * MIB, 10 * MIB, expandable_segments=True) == 40 * MIB
    assert _reserved(30 * MIB, 11 * MIB, expandable_segments=True) == 60 * MIB


@pytest.mark.parametrize("expandable_segments", [False, True])
def test_any_order_of_requests_and_releases_keeps_the_books(expandable_segments):
    draw = random.Random(3)
    allocator = CachingAllocator(expandable_segments=expandable_segments)
    held = []
    for _ in range(3000):
        if held and draw.random() < 0.5:
            allocator.free(held.pop(draw.randrange(len(held))))
        else:
            held.append(allocator.allocate(int(2 ** draw.uniform(0, 27))))
        assert sum(block.size for block in held) == allocator.allocated <= allocator.reserved

    spans = sorted((block.pool.is_small, block.address, block.size) for block in held)
    assert all(a[:1] != b[:1] or a[1] + a[2] <= b[1] for a, b in pairwise(spans))
    for block in held:
        allocator.free(block)
    assert allocator.allocated == 0
