"""Choose the next token of each sequence: apply the generation config, then sample."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fakexport.error import InvalidValue
from fakexport.files.documents import GenerationDefaults

from ..artifact import DeployError


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens. If temperature, top_k and top_p are all None, the most likely token is chosen.

    Otherwise, tokens are sampled, and a setting that is None is taken from the model's generation config, if
    the config has it.

    Args:
        temperature: Divisor of the scores, at least 1e-6.
        top_k: Number of most likely tokens to sample from.
        top_p: Sample only from the smallest set of most likely tokens whose total probability is at least
            this value (at most 1).
        seed: Seed for the random numbers, which are drawn on the CPU.

    Raises:
        ValueError: A number is out of range.
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
        """Whether the most likely token is always chosen."""
        return (self.temperature, self.top_k, self.top_p) == (None, None, None)

    def completed(self, defaults: GenerationDefaults) -> Sampling:
        """If tokens are sampled, fill in settings that are None from the generation config."""
        if self.is_greedy:
            return self
        return replace(
            self,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_k=defaults.top_k if self.top_k is None else self.top_k,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
        )

    def generator(self) -> torch.Generator:
        """Return a new random number generator with this seed."""
        return torch.Generator().manual_seed(self.seed)

    def chosen(self, scores: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Choose one token for each row of the scores: float32 `[batch, vocabulary]` on the CPU."""
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
    """Keep only the most likely tokens, as few as are needed for a total probability of `top_p`."""
    in_order, indices = scores.sort(descending=True)
    before = in_order.softmax(dim=-1).cumsum(dim=-1).roll(1, dims=-1)
    before[:, 0] = -1  # Smaller than any `top_p`. A small `top_p` may be rounded to 0 in float32.
    is_left_out = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, indices, before >= top_p)
    return scores.masked_fill(is_left_out, -torch.inf)


@dataclass(frozen=True)
class Place:
    """State of the sequences when the next token is chosen.

    `rows` are the tokens of each sequence so far: the prompt without padding, then the new tokens.
    `generated` is the number of new tokens. `is_last` is true for the last of the requested tokens.
    `is_after_one` is true if the prompt is a single token; a forced first token applies only in this case.
    Tokens in `eos` end a sequence.
    """

    rows: Sequence[Sequence[int]]
    generated: int
    is_last: bool
    is_after_one: bool = True
    eos: Collection[int] = ()


def restricted(scores: torch.Tensor, defaults: GenerationDefaults, place: Place) -> torch.Tensor:
    """Apply the generation config to float32 scores `[batch, vocabulary]`, as transformers does."""
    if scores.isnan().any():
        raise DeployError("the scores of the tokens are NaN: check that the weights belong to this model")
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
    """Yield the tokens that must not be generated after the tokens of a row."""
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
    """Return a mask of the tokens that occur in each row. Image tokens outside the vocabulary are skipped."""
    marks = torch.zeros_like(scores, dtype=torch.bool)
    for mark, row in zip(marks, rows, strict=True):
        mark[[token for token in set(row) if token < len(mark)]] = True
    return marks


def _only(scores: torch.Tensor, token: int) -> torch.Tensor:
    forced = torch.full_like(scores, -torch.inf)
    forced[:, token] = 0
    return forced
