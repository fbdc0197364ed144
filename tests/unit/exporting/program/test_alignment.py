"""Which items of two sequences correspond."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fakexport.exporting.program.differences.alignment import align

SEQUENCES = st.lists(st.integers(0, 4), max_size=12)


def longest_common_length(a: list[int], b: list[int]) -> int:
    """The textbook's table."""
    row = [0] * (len(b) + 1)
    for item in a:
        above, row = row, [0]
        for j, other in enumerate(b):
            row.append(above[j] + 1 if item == other else max(above[j + 1], row[j]))
    return row[-1]


@given(SEQUENCES, SEQUENCES)
def test_as_many_equal_items_as_possible_are_paired_in_the_order_of_both(a: list[int], b: list[int]) -> None:
    pairs = align(a, b)

    assert all(a[i] == b[j] for i, j in pairs)
    assert all(first[0] < second[0] and first[1] < second[1] for first, second in pairwise(pairs))
    assert len(pairs) == longest_common_length(a, b)


def test_an_added_item_costs_only_itself() -> None:
    assert align("abcabcabc", "abcabXcabc") == [(i, i if i < 5 else i + 1) for i in range(9)]


def test_a_moved_item_is_paired_once_at_most() -> None:
    assert align("abcd", "bcda") == [(1, 0), (2, 1), (3, 2)]


def test_many_equal_blocks_with_one_more_item_each_are_paired() -> None:
    block = list(range(70))
    longer = [*block[:30], -1, *block[30:]]

    pairs = align(block * 140, longer * 140)

    assert len(pairs) == 70 * 140


def test_long_sequences_with_little_in_common_are_paired_in_order() -> None:
    numbers = random.Random(0)
    a, b = ([numbers.randrange(6) for _ in range(10_000)] for _ in range(2))

    pairs = align(a, b)

    assert pairs == sorted(pairs)
    assert all(a[left] == b[right] for left, right in pairs)
