"""Track the generator state of each random operation in eager mode, so that a replay draws the same numbers.

Nothing is drawn while fake tensors are made, so each random operation notes from where in the sequence of
its generator it would have drawn: a known state, and the number of 32-bit words since then. torch's kernels
say how many words an operation takes from the sizes of its arguments alone. Where that depends on the
values (rejection sampling), the operation itself becomes the next point to count from, and anyone who needs
the numbers after it has to run it first.

The generator itself carries the position, as a mark in its state (`_torch.mersenne_twister.marked`). So
`torch.manual_seed`, `get_rng_state`, `set_rng_state` and `fork_rng` in a constructor mean what they mean in
eager mode, without any of them being patched. When the recording ends, the marks are taken out again.

Devices that do not exist have no generator: what is drawn there is drawn from the default one. A model that
is made on virtual devices, some of it on the CPU, has the numbers of its construction on the CPU.
"""

from __future__ import annotations

import itertools
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch

from fakexport._torch.mersenne_twister import (
    MarkedState,
    advanced,
    cached_normal,
    is_as_far,
    mark_of,
    raw_mark,
    seed_of,
    with_cached_normal,
)
from fakexport._torch.random_words import Drawn
from fakexport._torch.real_execution import real_execution

from .records import Operation

T = TypeVar("T")

# torch keeps no note of who chose a seed. Without anyone, the default generator has 64 random bits, and a
# new `torch.Generator()` 67280421310721 (c10/core/GeneratorImpl.h:default_rng_seed_val).
_CHOSEN_SEEDS = 2**40

_MARK = struct.Struct("<QQq")  # Number of the origin, words, place of the pair.
_WORDS_PER_PAIR = 4  # Box-Muller takes two doubles of 64 bits.
_KEPT_BY_ORIGIN = -1
_NONE_KEPT = -2  # In a mark only.

_numbers = itertools.count(1)


class Origin:
    """A state of a generator to count from: known, or what an operation leaves behind when it runs.

    Args:
        first: The state of the real generator that it goes back to, as `torch.Generator.get_state` returns
            it.
        is_known: Whether that is the state itself; otherwise it is known when the operation ran.
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
        """Whether someone chose the seed that it goes back to."""
        return seed_of(self.first) < _CHOSEN_SEEDS

    def resolve(self, state: torch.Tensor) -> None:
        """Make the state known; the operation is not needed any more."""
        self.state = state
        self.operation = None

    def elements_before(self) -> int:
        """Return how many elements have to be filled before the state is known."""
        elements, origin = 0, self
        while origin.operation is not None:
            elements += origin.operation.draw.elements
            origin = origin.operation.draw.start.origin
        return elements

    def mark(self, generator: torch.Generator, words: int, pair_at: int | None) -> bytes:
        """Let a generator say that it is there; what `raw_mark` gives of its state from now on."""
        mark = _MARK.pack(self.number, words, _NONE_KEPT if pair_at is None else pair_at)
        if self._marked is None:
            self._marked = MarkedState(self.first, mark)
        raw = self._marked.mark(mark)
        generator.set_state(self._marked.state)
        return raw

    def reach(self, words: int, state: torch.Tensor) -> None:
        """Note the state that was found `words` words later, for going on from there."""
        self._reached = (words, state)

    def state_after(self, words: int) -> torch.Tensor:
        """Return the state `words` 32-bit words later. Replays go forward mostly, and it goes on from the
        last.
        """
        assert self.state is not None
        start, state = self._reached or (0, self.state)
        if start > words:
            start, state = 0, self.state
        state = advanced(state, words - start)
        self.reach(words, state)
        return state


_origins: weakref.WeakValueDictionary[int, Origin] = weakref.WeakValueDictionary()
_left_behind: dict[int, Origin] = {}  # By generator: what the mark names that it kept after a recording.


class Position(NamedTuple):
    """A place in the sequence of a generator.

    Args:
        origin: Where the counting began.
        words: How many 32-bit words were drawn since.
        pair_at: Where the pair of normal numbers was drawn of which the second is kept for the next call:
            words since the origin, -1 for the one that the origin itself may keep, or None.
    """

    origin: Origin
    words: int = 0
    pair_at: int | None = _KEPT_BY_ORIGIN

    def after(self, drawn: Drawn | None) -> Position | None:
        """Return the place after a draw, or None if it cannot be told without drawing."""
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
        """Return the generator's state at this place, uint8[5056]. The state of the origin has
        to be known.
        """
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
    """The random numbers of one operation.

    Args:
        start: From where it draws.
        drawn: How much it draws, or None if only running it tells. Then `leaves` is where it ends.
        elements: How many elements it fills.
    """

    __slots__ = ("_leaves", "drawn", "elements", "start")

    def __init__(
        self, start: Position, drawn: Drawn | None, leaves: Origin | None = None, elements: int = 0
    ) -> None:
        self.start = start
        self.elements = elements
        self.drawn = drawn
        # Weak, as the origin holds the operation and thereby the draw: histories are freed without a GC.
        self._leaves = None if leaves is None else weakref.ref(leaves)

    @property
    def is_seeded(self) -> bool:
        """Whether someone chose the seed, so that the numbers are meant to be these."""
        return self.start.origin.is_seeded

    @property
    def leaves(self) -> Origin | None:
        """Where the operation ends, if only running it shows that and it was asked for."""
        return None if self._leaves is None else self._leaves()

    def belongs_to(self, operation: RandomOperation) -> None:
        """Say which operation draws. Called once, by the operation."""
        if (leaves := self.leaves) is not None:
            leaves.operation = operation

    def run(self, function: Callable[[], T]) -> T:
        """Call the function with the default CPU generator where this draw starts, then put it back."""
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
                raise RuntimeError("it drew more or fewer random numbers than fakexport expected")
            after.origin.reach(after.words, end)


@dataclass(slots=True, eq=False, repr=False)
class RandomOperation(Operation):
    """One call of an operator that draws random numbers.

    Args:
        draw: Where its random numbers come from.
    """

    draw: Draw = field(kw_only=True)

    def __post_init__(self) -> None:
        self.draw.belongs_to(self)


class Draws:
    """Tells each random operation of one recording where its numbers come from."""

    def __init__(self) -> None:
        self._generators: dict[int, torch.Generator] = {}
        self._entered: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # Its state, and where that began.
        self._last: dict[int, tuple[bytes, Position]] = {}  # By generator: the mark that it was given.
        self._origins: list[Origin] = []  # Kept alive, as marks name them: `get_rng_state` copies marks.

    def next(self, drawn: Drawn | None, generator: torch.Generator | None = None, elements: int = 0) -> Draw:
        """Return the draw of the next random operation.

        Args:
            drawn: How much it draws; None if that is not known.
            generator: The one that the operation asks for. Default: the default one.
            elements: How many elements it fills.
        """
        generator = torch.default_generator if generator is None else generator
        draw, position = _drawn_at(self.position(generator), drawn, elements)
        if position.origin is not draw.start.origin:
            self._origins.append(position.origin)
        raw = position.origin.mark(generator, position.words, position.pair_at)
        self._last[id(generator)] = (raw, position)
        return draw

    def finish(self, resolve: Callable[[Origin], bool] | None) -> None:
        """Take the marks out of the generators.

        Args:
            resolve: Makes the state of an origin known by drawing what leads to it, and says whether it did;
                the generators are then left where eager construction leaves them. One whose place stays
                unknown keeps its mark: a later recording goes on from there, and numbers drawn from it
                before differ. Default: leave them as if nothing was drawn.
        """
        for key, generator in self._generators.items():
            position = _marked_position(generator.get_state())
            if position is None:
                continue  # It was seeded again, for real.
            if resolve is None:
                entered, first = self._entered[key]
                is_same = position.origin.first is first  # Otherwise it was seeded again, for real.
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
        """Return where a generator is."""
        state = generator.get_state()
        last = self._last.get(id(generator))
        if last is not None and last[0] == raw_mark(state):
            return last[1]  # No one touched it since.
        self._generators[id(generator)] = generator
        position = _marked_position(state)
        if position is None:
            position = Position(Origin(state))
            self._origins.append(position.origin)
        self._entered.setdefault(id(generator), (state, position.origin.first))
        return position


def _drawn_at(start: Position, drawn: Drawn | None, elements: int) -> tuple[Draw, Position]:
    """Return the draw, and the place after it."""
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
