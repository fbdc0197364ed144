"""Align two sequences. This is efficient even for long sequences that have few differences."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

# This limit keeps the worst case near one second: its square bounds the steps and the stored numbers.
_MAX_EDITS = 800


def align(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of positions (in `a`, in `b`) with equal items. Both positions increase from pair to pair.

    Example:
        >>> align("abcd", "xbcy")
        [(1, 1), (2, 2)]
    """
    start, end, shorter = 0, 0, min(len(a), len(b))
    while start < shorter and a[start] == b[start]:
        start += 1
    while end < shorter - start and a[-1 - end] == b[-1 - end]:
        end += 1
    inner = _matched(a[start : len(a) - end], b[start : len(b) - end])
    return [
        *((i, i) for i in range(start)),
        *((start + i, start + j) for i, j in inner),
        *((len(a) - back, len(b) - back) for back in range(end, 0, -1)),
    ]


def _matched(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return a longest common subsequence. The running time grows with the number of differences.

    Sequences with more than `_MAX_EDITS` differences have little in common, so `difflib`'s quick
    approximation is used. Source: Eugene Myers, "An O(ND) Difference Algorithm and Its Variations" (1986).
    """
    if not a or not b:
        return []
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
    """Return whether the better path to this diagonal skips an item of `b`, rather than an item of `a`."""
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
    return sorted(pairs)
