"""Track the eager-mode generator state of each random operator, so that a replay draws the same numbers.

No numbers are drawn while fake tensors are created. Instead, each random operator records its position in its
generator's sequence: a known state, and the number of 32-bit words drawn since that state. For most of
torch's kernels, the sizes of the arguments determine how many words are drawn. If the number of words depends
on the drawn values (rejection sampling), counting starts again after that operator, and the operator must run
before later numbers can be computed.

The position is stored in the generator itself, as a mark in its state (`_torch.random.mersenne_twister`).
Therefore, `torch.manual_seed`, `get_rng_state`, `set_rng_state` and `fork_rng` in a constructor behave as in
eager mode without being patched. The marks are removed when the recording ends.

Virtual devices have no generators: their random numbers come from the default CPU generator. A model that is
built partly on virtual devices gets the same numbers as a model that is built on the CPU.
"""

from __future__ import annotations

import itertools
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch

from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.random.mersenne_twister import (
    MarkedState,
    advanced,
    cached_normal,
    is_as_far,
    mark_of,
    raw_mark,
    seed_of,
    with_cached_normal,
)
from fakexport._torch.random.rng_consumption import Drawn

from .records import Operation

T = TypeVar("T")

# torch does not record whether a user set the seed. A seed that no user set is larger than this: it has 64
# random bits for the default generator, and is 67280421310721 for a new `torch.Generator()`
# (c10/core/GeneratorImpl.h:default_rng_seed_val).
_CHOSEN_SEEDS = 2**40

_MARK = struct.Struct("<QQq")  # Number of the origin, number of words, and position of the pair.
_WORDS_PER_PAIR = 4  # Box-Muller uses two 64-bit doubles.
_KEPT_BY_ORIGIN = -1
_NONE_KEPT = -2  # Only in a mark.

_numbers = itertools.count(1)


class Origin:
    """A generator state from which drawn random 32-bit words are counted.

    The state is either known, or it is the state after an operator that has not run yet.

    Args:
        first: The real generator state from which this one is derived, as returned by
            `torch.Generator.get_state`.
        is_known: Whether `first` is the state itself. If false, the state is known only after `operation` has
            run.
    """

    __slots__ = ("__weakref__", "_marked", "_reached", "first", "number", "operation", "state")

    def __init__(self, first: torch.Tensor, is_known: bool = True) -> None:
        self.number = next(_numbers)
        self.first = first
        self.state = first if is_known else None
        self.operation: RandomOperation | None = None
        self._reached: tuple[int, torch.Tensor] | None = None
        self._marked: MarkedState | None = None
        _origins[self.number] = self

    @property
    def is_seeded(self) -> bool:
        """Whether the original seed was set by the user."""
        return seed_of(self.first) < _CHOSEN_SEEDS

    def resolve(self, state: torch.Tensor) -> None:
        """Set the state, and drop the reference to the operator that had to run to compute it."""
        self.state = state
        self.operation = None

    def elements_before(self) -> int:
        """Return how many elements must be filled with random numbers before this state is known."""
        elements, origin = 0, self
        while origin.operation is not None:
            elements += origin.operation.draw.elements
            origin = origin.operation.draw.start.origin
        return elements

    def mark(self, generator: torch.Generator, words: int, pair_at: int | None) -> bytes:
        """Mark the generator as being `words` words after this origin. Return the bytes of the mark."""
        mark = _MARK.pack(self.number, words, _NONE_KEPT if pair_at is None else pair_at)
        if self._marked is None:
            self._marked = MarkedState(self.first, mark)
        raw = self._marked.mark(mark)
        generator.set_state(self._marked.state)
        return raw

    def reach(self, words: int, state: torch.Tensor) -> None:
        """Cache the state after `words` words, so that `state_after` can start from it."""
        self._reached = (words, state)

    def state_after(self, words: int) -> torch.Tensor:
        """Return the state after `words` 32-bit words. Start from the last result if possible."""
        assert self.state is not None
        start, state = self._reached or (0, self.state)
        if start > words:
            start, state = 0, self.state
        state = advanced(state, words - start)
        self.reach(words, state)
        return state


_origins: weakref.WeakValueDictionary[int, Origin] = weakref.WeakValueDictionary()
_left_behind: dict[int, Origin] = {}  # By generator: the origin of a mark that was not removed from it.


class Position(NamedTuple):
    """A position in the sequence of a generator.

    Args:
        pair_at: Position of the pair of normally distributed numbers whose second number is cached for the
            next call, in words since the origin. -1 if the origin's state may have such a cached number; None
            if no number is cached.
    """

    origin: Origin  # The start of the count.
    words: int = 0  # Number of 32-bit words drawn since the origin.
    pair_at: int | None = _KEPT_BY_ORIGIN

    def after(self, drawn: Drawn | None) -> Position | None:
        """Return the position after a draw, or None if it is not known without drawing."""
        if drawn is None:
            return None
        origin, words, pair_at = self
        if drawn.serial_normals:
            if pair_at == _KEPT_BY_ORIGIN:
                if origin.state is None:
                    return None
                pair_at = _KEPT_BY_ORIGIN if cached_normal(origin.state) is not None else None
            fresh = drawn.serial_normals - (pair_at is not None)
            pairs = (fresh + 1) // 2
            words += _WORDS_PER_PAIR * pairs
            pair_at = words - _WORDS_PER_PAIR if fresh % 2 else None
        return Position(origin, words + drawn.words, pair_at)

    def state(self) -> torch.Tensor:
        """Return the generator's state at this position, uint8[5056]. The origin's state must be known."""
        assert self.origin.state is not None
        if self.pair_at is None:
            kept = None
        elif self.pair_at == _KEPT_BY_ORIGIN:
            kept = cached_normal(self.origin.state)
        else:
            kept = _second_of_pair(self.origin.state_after(self.pair_at))
        return with_cached_normal(self.origin.state_after(self.words), kept)


def _second_of_pair(state: torch.Tensor) -> float | None:
    generator = torch.Generator()
    generator.set_state(with_cached_normal(state, None))
    with real_execution():
        torch.empty(1, dtype=torch.float64).normal_(generator=generator)
    return cached_normal(generator.get_state())


class Draw:
    """The random numbers of one operator.

    Args:
        drawn: The amount of numbers, or None if the operator must run to determine it.
        leaves: The generator state after the draw, if `drawn` is None.
    """

    __slots__ = ("_leaves", "drawn", "elements", "start")

    def __init__(
        self, start: Position, drawn: Drawn | None, leaves: Origin | None = None, elements: int = 0
    ) -> None:
        self.start = start
        self.elements = elements
        self.drawn = drawn
        # A weak reference: the origin references the operator, which references this draw. With a reference
        # cycle, histories would only be freed by a garbage collection.
        self._leaves = None if leaves is None else weakref.ref(leaves)

    @property
    def is_seeded(self) -> bool:
        """Whether the user set the seed, so that these exact numbers are intended."""
        return self.start.origin.is_seeded

    @property
    def leaves(self) -> Origin | None:
        """The state after the draw, if the operator must run to determine it.

        None if the operator need not run, or if the state was freed because nothing else uses it.
        """
        return None if self._leaves is None else self._leaves()

    def belongs_to(self, operation: RandomOperation) -> None:
        """Set the operator that makes this draw. The operator's constructor calls this."""
        if (leaves := self.leaves) is not None:
            leaves.operation = operation

    def run(self, function: Callable[[], T]) -> T:
        """Call the function with the default CPU generator in the state before this draw.

        Afterwards, the generator's own state is restored.
        """
        generator = torch.default_generator
        before, start = generator.get_state(), self.start.state()
        generator.set_state(start)
        try:
            result = function()
            self._note_end(start, generator.get_state())
            return result
        finally:
            generator.set_state(before)

    def _note_end(self, start: torch.Tensor, end: torch.Tensor) -> None:
        if (leaves := self.leaves) is not None and leaves.state is None:
            leaves.resolve(end)
        if (after := self.start.after(self.drawn)) is not None:
            if not is_as_far(start, end, after.words - self.start.words):
                raise RuntimeError("the operator drew more or fewer random numbers than fakexport expected")
            after.origin.reach(after.words, end)


@dataclass(slots=True, eq=False, repr=False)
class RandomOperation(Operation):
    """One call of an operator that draws random numbers."""

    draw: Draw = field(kw_only=True)  # The random numbers that the operator draws.

    def __post_init__(self) -> None:
        self.draw.belongs_to(self)


class Draws:
    """Assigns a position in a generator's sequence to each random operator of one recording."""

    def __init__(self) -> None:
        self._generators: dict[int, torch.Generator] = {}
        # By generator: its state before the recording, and the real state that this one is derived from.
        self._entered: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._last: dict[int, tuple[bytes, Position]] = {}  # By generator: its mark, and the marked position.
        # Kept alive because marks refer to them by number, also copies of marks from `get_rng_state`.
        self._origins: list[Origin] = []

    def next(self, drawn: Drawn | None, generator: torch.Generator | None = None, elements: int = 0) -> Draw:
        """Return the draw of the next random operator."""
        generator = torch.default_generator if generator is None else generator
        draw, position = _drawn_at(self.position(generator), drawn, elements)
        if position.origin is not draw.start.origin:
            self._origins.append(position.origin)
        raw = position.origin.mark(generator, position.words, position.pair_at)
        self._last[id(generator)] = (raw, position)
        return draw

    def finish(self, resolve: Callable[[Origin], bool] | None) -> None:
        """Remove the marks from the generators.

        Args:
            resolve: Function that computes the state of an origin by running the draws before it, and returns
                whether that succeeded. The generators are then left in the state of eager construction. If
                the state of a generator cannot be computed, the generator keeps its mark: a later recording
                continues correctly, but numbers that are drawn before that differ from eager mode. If
                `resolve` is None, the generators are restored as if nothing was drawn.
        """
        for key, generator in self._generators.items():
            position = _marked_position(generator.get_state())
            if position is None:
                continue  # It was seeded again, outside of the recording.
            if resolve is None:
                entered, first = self._entered[key]
                # If the states differ, the generator was seeded again during the recording.
                is_same = position.origin.first is first
                generator.set_state(entered if is_same else position.origin.first)
            elif position.origin.state is not None or resolve(position.origin):
                generator.set_state(position.state())
            else:
                _left_behind[key] = position.origin
        self._generators.clear()
        self._last.clear()
        self._entered.clear()
        self._origins.clear()

    def position(self, generator: torch.Generator) -> Position:
        """Return the current position of a generator."""
        state = generator.get_state()
        last = self._last.get(id(generator))
        if last is not None and last[0] == raw_mark(state):
            return last[1]  # It has not been used since.
        self._generators[id(generator)] = generator
        position = _marked_position(state)
        if position is None:
            position = Position(Origin(state))
            self._origins.append(position.origin)
        self._entered.setdefault(id(generator), (state, position.origin.first))
        return position


def _drawn_at(start: Position, drawn: Drawn | None, elements: int) -> tuple[Draw, Position]:
    """Return the draw, and the position after it."""
    after = start.after(drawn)
    if after is not None:
        return Draw(start, drawn), after
    leaves = Origin(start.origin.first, is_known=False)
    return Draw(start, None, leaves, elements), Position(leaves)


def _marked_position(state: torch.Tensor) -> Position | None:
    mark = mark_of(state)
    if mark is None:
        return None
    number, words, pair_at = _MARK.unpack(mark[: _MARK.size])
    origin = _origins.get(number)
    return None if origin is None else Position(origin, words, None if pair_at == _NONE_KEPT else pair_at)
