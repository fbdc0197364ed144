"""How entries of a checkpoint become weights, as an archive records it: no code, and no torch."""

from __future__ import annotations

from dataclasses import dataclass

Numbers = tuple[int, ...]

OPERATORS = frozenset(
    {"cat", "permute", "reshape", "select", "slice", "split", "squeeze", "stack", "transpose", "unsqueeze"}
)
"What a recipe may do: move elements. `weights.recipe` implements each operator."


@dataclass(frozen=True)
class Step:
    """One operator.

    Args:
        operator: One of `OPERATORS`.
        values: What it is applied to: indices of the entries, followed by those of earlier steps' results.
        numbers: Its dimensions and sizes.
    """

    operator: str
    values: tuple[int, ...]
    numbers: Numbers


@dataclass(frozen=True)
class Recipe:
    """Builds weights from entries.

    Args:
        entries: Names in the checkpoint, all of which are used up.
        steps: In order; none for a mere renaming.
        weights: The name of each weight that comes out, and the index of its value.
    """

    entries: tuple[str, ...]
    steps: tuple[Step, ...]
    weights: tuple[tuple[str, int], ...]
