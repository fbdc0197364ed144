"""Which items of two sequences correspond, fast also for long sequences of few distinct items.

Patience diff: trim what is equal at both ends, split at items that occur once on both sides, and find a
longest common subsequence of the small rest. Source: Bram Cohen, "Patience Diff Advantages" (2010).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

# Keeps the worst case near a second; its square is the number of steps and of numbers to remember.
_MAX_EDITS = 1_200


def align(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of positions with equal items, both columns increasing.

    Example:
        >>> align("abcd", "xbcy")
        [(1, 1), (2, 2)]
    """
    pairs: list[tuple[int, int]] = []
    segments = [(0, len(a), 0, len(b))]
    while segments:
        a_low, a_high, b_low, b_high = segments.pop()
        while a_low < a_high and b_low < b_high and a[a_low] == b[b_low]:
            pairs.append((a_low, b_low))
            a_low, b_low = a_low + 1, b_low + 1
        while a_low < a_high and b_low < b_high and a[a_high - 1] == b[b_high - 1]:
            a_high, b_high = a_high - 1, b_high - 1
            pairs.append((a_high, b_high))
        if a_low == a_high or b_low == b_high:
            continue

        anchors = _anchors(a[a_low:a_high], b[b_low:b_high])
        if not anchors:
            pairs += [(a_low + i, b_low + j) for i, j in _matched(a[a_low:a_high], b[b_low:b_high])]
            continue
        start = (a_low, b_low)
        for end in [*((a_low + i, b_low + j) for i, j in anchors), (a_high, b_high)]:
            segments.append((start[0], end[0], start[1], end[1]))
            start = end
    return sorted(pairs)


def _anchors(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return positions of items that occur once in each, as far as they come in the same order."""
    counts_a, counts_b = Counter(a), Counter(b)
    places = {item: j for j, item in enumerate(b) if counts_b[item] == 1 and counts_a[item] == 1}
    return _longest_increasing([(i, places[item]) for i, item in enumerate(a) if item in places])


def _longest_increasing(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest run of pairs, in order, whose second members increase too (patience sorting)."""
    tops: list[int] = []
    top_pairs: list[int] = []
    before: list[int] = []
    for position, (_, j) in enumerate(pairs):
        pile = bisect_left(tops, j)
        before.append(top_pairs[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [j]
        top_pairs[pile : pile + 1] = [position]

    chosen = []
    position = top_pairs[-1] if top_pairs else -1
    while position >= 0:
        chosen.append(pairs[position])
        position = before[position]
    return chosen[::-1]


def _matched(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return a longest common subsequence in time that grows with the number of differences.

    Sequences with more differences than `_MAX_EDITS` get `difflib`'s quick guess: they have little in common.
    Source: Eugene Myers, "An O(ND) Difference Algorithm and Its Variations" (1986).
    """
    reached: dict[int, int] = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), _MAX_EDITS) + 1):
        history.append(dict(reached))
        for diagonal in range(-edits, edits + 1, 2):
            is_down = _is_down(reached, diagonal, edits)
            x = reached[diagonal + 1] if is_down else reached[diagonal - 1] + 1
            while x < len(a) and x - diagonal < len(b) and a[x] == b[x - diagonal]:
                x += 1
            reached[diagonal] = x
            if x >= len(a) and x - diagonal >= len(b):
                return _walked_back(history, x, diagonal)
    blocks = SequenceMatcher(None, a, b, autojunk=True).get_matching_blocks()
    return [(block.a + offset, block.b + offset) for block in blocks for offset in range(block.size)]


def _is_down(reached: dict[int, int], diagonal: int, edits: int) -> bool:
    """Return whether the better way onto this diagonal skips an item of b; else it skips one of a."""
    if diagonal in (-edits, edits):
        return diagonal == -edits
    return reached[diagonal - 1] < reached[diagonal + 1]


def _walked_back(history: list[dict[int, int]], x: int, diagonal: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(history) - 1, -1, -1):
        is_down = _is_down(history[edits], diagonal, edits)
        previous = diagonal + 1 if is_down else diagonal - 1
        before = history[edits][previous]
        start = before if is_down else before + 1
        pairs += [(i, i - diagonal) for i in range(start, x)]
        x, diagonal = before, previous
    return pairs
