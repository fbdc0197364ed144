"""Choose the next token of each sequence: what the generation config forces and forbids, then a draw."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fakexport.documents import GenerationDefaults
from fakexport.error import InvalidValue

from ..artifact import DeployError


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens; without any of the first three, the most likely one is taken.

    Where tokens are drawn, a number that is None is that of the model's generation config, if it has one.

    Args:
        temperature: Divides the scores; at least 1e-6.
        top_k: Only so many of the most likely tokens are drawn.
        top_p: Only the most likely tokens that together reach this probability, up to 1, are drawn.
        seed: Start of the random numbers, which are drawn on the CPU.
    Raises:
        ValueError: a number that is out of its range.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature is not None and not 1e-6 <= self.temperature < float("inf"):
            raise InvalidValue(f"temperature is {self.temperature}, but must be at least 1e-6")
        if self.top_k is not None and self.top_k < 1:
            raise InvalidValue(f"top_k is {self.top_k}, but must be 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InvalidValue(f"top_p is {self.top_p}, but must be above 0 and at most 1")
        if not 0 <= self.seed < 2**64:
            raise InvalidValue(f"seed is {self.seed}, but must be from 0 to 2**64 - 1")

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""
        return (self.temperature, self.top_k, self.top_p) == (None, None, None)

    def completed(self, defaults: GenerationDefaults) -> Sampling:
        """Return the sampling with what the generation config says, if tokens are drawn."""
        if self.is_greedy:
            return self
        return replace(
            self,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_k=defaults.top_k if self.top_k is None else self.top_k,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
        )

    def generator(self) -> torch.Generator:
        """Return the source of the random numbers."""
        return torch.Generator().manual_seed(self.seed)

    def chosen(self, scores: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return one token for each row of scores `[batch, vocabulary]`, float32 on the CPU."""
        if self.is_greedy:
            return scores.argmax(dim=-1)
        scores = scores / (self.temperature or 1.0)
        if self.top_k is not None:
            least = scores.topk(min(self.top_k, scores.shape[-1])).values[:, -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if self.top_p is not None:
            scores = _of_probability(scores, self.top_p)
        return torch.multinomial(scores.softmax(dim=-1), 1, generator=generator)[:, 0]


def _of_probability(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the fewest tokens whose probabilities add up to `top_p`, and at least one."""
    in_order, indices = scores.sort(descending=True)
    before = in_order.softmax(dim=-1).cumsum(dim=-1).roll(1, dims=-1)
    before[:, 0] = -1  # Less than any `top_p`, which may be 0 in float32.
    is_left_out = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, indices, before >= top_p)
    return scores.masked_fill(is_left_out, -torch.inf)


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
