"""Where the random numbers of a replay come from.

Nothing is drawn while a fake module is built, so the numbers of an eager construction are not there to be
had cheaply: the hundredth random operation would need the numbers of the ninety-nine before it. Each
random operation has a generator state of its own instead, derived from the seed of the process and its
place among the random operations. The same program gives the same values in every run and in any order
of replay. `Draw` is the door behind which the exact eager state of deferred initialisation belongs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

__all__ = ["Draw", "Draws"]

T = TypeVar("T")

# torch keeps no note of who chose a seed. Without anybody, the default generator has 64 random bits, and a
# new `torch.Generator()` 67280421310721 (c10/core/GeneratorImpl.h:default_rng_seed_val).
_CHOSEN_SEEDS = 2**40


class Draw(NamedTuple):
    """The random numbers of one operation.

    Args:
        seed: Seed of its generator, or of the process when the recording began.
        place: Which random operation of the recording this is, from 0.
    """

    seed: int
    place: int

    @property
    def is_seeded(self) -> bool:
        """Whether somebody chose the seed, so that the numbers are meant to be these."""
        return self.seed < _CHOSEN_SEEDS

    def run(self, function: Callable[[], T]) -> T:
        """Calls the function with the default CPU generator in this draw's state, and puts the state back."""
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(self._state_seed())
        try:
            return function()
        finally:
            generator.set_state(state)

    def _state_seed(self) -> int:
        digest = hashlib.blake2b(f"{self.seed}/{self.place}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1


class Draws:
    """Hands out the draws of one recording, in order."""

    def __init__(self) -> None:
        self._seed = torch.initial_seed()
        self.count = 0

    def next(self, generator: torch.Generator | None = None) -> Draw:
        """The draw of the next random operation.

        Args:
            generator: The one that the operation asks for. Default: torch's default one.
        """
        self.count += 1
        return Draw(self._seed if generator is None else generator.initial_seed(), self.count - 1)
