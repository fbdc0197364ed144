"""What the generation config of a model forces and forbids, as changes of the scores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from fakexport.documents import GenerationDefaults

from ..artifact import DeployError


@dataclass(frozen=True)
class Place:
    """Where a token is generated.

    Args:
        rows: The tokens of each sequence so far: those of the prompt without padding, then the new ones.
        generated: New tokens before this one.
        is_last: Whether there is room for this token only.
        is_after_one: Whether the new tokens follow a single one; a first token is forced only then.
        eos: Tokens that end a sequence.
    """

    rows: Sequence[Sequence[int]]
    generated: int
    is_last: bool
    is_after_one: bool = True
    eos: Collection[int] = ()


def restricted(scores: torch.Tensor, defaults: GenerationDefaults, place: Place) -> torch.Tensor:
    """Return the scores `[batch, vocabulary]`, float32 on the CPU, as transformers changes them.

    Raises:
        DeployError: every token is forbidden, or a score is NaN.
    """
    if scores.isnan().any():
        raise DeployError("the scores of the tokens are NaN: compare the weights with those of the model")
    if not place.generated and place.is_after_one and defaults.forced_first is not None:
        return _only(scores, defaults.forced_first)
    if place.is_last and defaults.forced_last is not None:
        return _only(scores, defaults.forced_last)
    if (penalty := defaults.repetition_penalty) != 1:
        less = torch.where(scores < 0, scores * penalty, scores / penalty)
        scores = torch.where(_marked(scores, place.rows), less, scores)
    scores = scores.masked_fill(
        _marked(scores, [list(_forbidden(row, defaults, place)) for row in place.rows]), -torch.inf
    )
    if scores.isneginf().all(dim=-1).any():
        raise DeployError("the generation config of the model forbids every token")
    return scores


def _forbidden(row: Sequence[int], defaults: GenerationDefaults, place: Place) -> Iterator[int]:
    """Yield the tokens that may not follow those of a row."""
    yield from defaults.suppressed
    if not place.generated:
        yield from defaults.suppressed_first
    if place.generated < defaults.least_new or len(row) < defaults.least:
        yield from place.eos
    for *before, last in defaults.bad_words:
        if list(row[-len(before) :]) == before:
            yield last
    if size := defaults.no_repeat_ngram_size:
        start = row[len(row) + 1 - size :] if len(row) >= size else ()
        for index in range(len(row) + 1 - size):
            if row[index : index + size - 1] == start:
                yield row[index + size - 1]


def _marked(scores: torch.Tensor, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return where the tokens of each row are. Placeholders of images may be outside of the vocabulary."""
    marks = torch.zeros_like(scores, dtype=torch.bool)
    for mark, row in zip(marks, rows, strict=True):
        mark[[token for token in set(row) if token < len(mark)]] = True
    return marks


def _only(scores: torch.Tensor, token: int) -> torch.Tensor:
    forced = torch.full_like(scores, -torch.inf)
    forced[:, token] = 0
    return forced
