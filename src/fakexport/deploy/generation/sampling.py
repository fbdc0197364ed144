"""Choose the next token of each sequence from its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fakexport.documents import GenerationDefaults
from fakexport.error import InvalidValue


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens; without any of the first three, the most likely one is taken.

    Args:
        temperature: Divides the scores; above 0.
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
        if self.temperature is not None and not 0 < self.temperature < float("inf"):
            raise InvalidValue(f"temperature is {self.temperature}, but must be above 0")
        if self.top_k is not None and self.top_k < 1:
            raise InvalidValue(f"top_k is {self.top_k}, but must be 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InvalidValue(f"top_p is {self.top_p}, but must be above 0 and at most 1")

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""
        return (self.temperature, self.top_k, self.top_p) == (None, None, None)

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


def restricted(
    scores: torch.Tensor,
    defaults: GenerationDefaults,
    *,
    generated: int,
    is_last: bool,
    is_after_one: bool = True,
) -> torch.Tensor:
    """Return the scores with what the model's generation config forces or forbids.

    Args:
        scores: `[batch, vocabulary]`.
        defaults: The generation config.
        generated: New tokens before this one.
        is_last: Whether there is room for this token only.
        is_after_one: Whether the new tokens follow a single one; a first token is forced only then.
    """
    scores = _without(scores, defaults.suppressed)
    if not generated:
        scores = _without(scores, defaults.suppressed_first)
    if not generated and is_after_one and defaults.forced_first is not None:
        return _only(scores, defaults.forced_first)
    if is_last and defaults.forced_last is not None:
        return _only(scores, defaults.forced_last)
    return scores


def _without(scores: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
    known = [token for token in tokens if token < scores.shape[-1]]
    return scores.index_fill(-1, torch.tensor(known, dtype=torch.long), -torch.inf) if known else scores


def _only(scores: torch.Tensor, token: int) -> torch.Tensor:
    forced = torch.full_like(scores, -torch.inf)
    forced[:, token] = 0
    return forced


def _of_probability(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the fewest tokens whose probabilities add up to `top_p`, and at least one."""
    in_order, indices = scores.sort(descending=True)
    before = in_order.softmax(dim=-1).cumsum(dim=-1).roll(1, dims=-1)
    before[:, 0] = 0
    is_left_out = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, indices, before >= top_p)
    return scores.masked_fill(is_left_out, -torch.inf)
