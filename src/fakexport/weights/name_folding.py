"""Names of repeated layers on one line: `model.layers.{0..125}.mlp.up_proj.weight`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

Numbers = tuple[int, ...]

_SIGNS = frozenset("#{}")  # A name that has one of them is shown as it is.


def template_of(name: str) -> str:
    """Return the name with `#` for each of its parts that is a number."""
    return ".".join("#" if _is_number(part) else part for part in name.split("."))


def fold_names(names: Iterable[str]) -> list[str]:
    """Return the names, folding those that differ only in numbers, in order of first appearance.

    Nothing is lost and nothing added: each line stands for exactly the names that it covers.

    Example:
        >>> fold_names(["h.0.w", "h.1.w", "h.2.w", "h.5.w", "b"])
        ['h.{0..2,5}.w', 'b']
    """
    groups: dict[tuple[bool, str], list[Numbers]] = {}  # A name may be the template of others.
    for name in dict.fromkeys(names):
        is_plain = not _SIGNS & set(name)
        numbers = tuple(int(part) for part in name.split(".") if is_plain and _is_number(part))
        groups.setdefault((is_plain, template_of(name) if is_plain else name), []).append(numbers)
    return [
        _filled(template, sets) if numbers[0] else template
        for (_, template), numbers in groups.items()
        for sets in _products(numbers)
    ]


def _is_number(part: str) -> bool:
    """Return whether the part is a number and written as numbers are: `7`, not `007`."""
    return part.isascii() and part.isdecimal() and len(part) < 10 and str(int(part)) == part


def _products(numbers: Sequence[Numbers]) -> list[tuple[tuple[int, ...], ...]]:
    """Return the tuples as products of sets, as few as one pass finds."""
    sets = tuple(tuple(sorted(set(column))) for column in zip(*numbers, strict=True))
    if prod(map(len, sets)) == len(numbers):
        return [sets]
    rests: dict[int, list[Numbers]] = {}
    for first, *rest in numbers:
        rests.setdefault(first, []).append(tuple(rest))
    firsts: dict[frozenset[Numbers], list[int]] = {}
    for number, tails in rests.items():
        firsts.setdefault(frozenset(tails), []).append(number)
    return [
        (tuple(sorted(numbers_)), *product)
        for tails_, numbers_ in firsts.items()
        for product in _products(sorted(tails_))
    ]


def _filled(template: str, sets: Sequence[Sequence[int]]) -> str:
    columns = iter(sets)
    return ".".join(_ranges(next(columns)) if part == "#" else part for part in template.split("."))


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return texts[0] if len(numbers) == 1 else f"{{{','.join(texts)}}}"
