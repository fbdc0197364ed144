"""A cache of which each block uses what is at its own position, and nothing else.

`Cache` of transformers is a list of layers, and a block says by a number (`layer_idx`) which one is its own.
That of an encoder-decoder also remembers by that number which keys and values are there (`is_updated`).
While a block is recorded, the list and the dict note what is asked for (`noted_parts.py`).

Source: `transformers/cache_utils.py:Cache.update, EncoderDecoderCache`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .noted_parts import NotedFlags, NotedLayers
from .positions import PositionUses

_PARTS = {"layers": "Cache", "is_updated": "EncoderDecoderCache"}
"""The class of transformers that keeps it, by the name of the attribute."""


@dataclass(frozen=True)
class CachePart:
    """What a cache has for each position, as far as a block may use it.

    Args:
        owner: The cache.
        name: Which attribute of it this is.
        held: All layers, or all flags.
        positions: Those of the block.
    """

    owner: Any = field(repr=False)
    name: str
    held: list[Any] | dict[int, bool] = field(repr=False)
    positions: tuple[int, ...]

    @property
    def own(self) -> tuple[Any, ...]:
        """What is at the positions of the block, in the order of these."""
        return tuple(self.held[at] for at in self.positions)


def cache_part(value: Any, attributes: Mapping[str, Any], positions: Collection[int]) -> CachePart | None:
    """Return the layers of a cache of transformers, or its flags; None for anything else.

    Args:
        value: Any object.
        attributes: Its `__dict__`.
        positions: The numbers of the block, which no other block has. Each is in the cache already: a new one
            would change how many there are.
    """
    kinds = type(value).__mro__
    names = {kind.__name__ for kind in kinds if kind.__module__ == "transformers.cache_utils"}
    name = next((name for name, kind in _PARTS.items() if kind in names and name in attributes), None)
    if name is None or any(name in vars(kind) or "__getattribute__" in vars(kind) for kind in kinds[:-1]):
        return None
    held = attributes[name]
    if not positions or not set(positions) <= _places(held):
        return None
    return CachePart(value, name, held, tuple(positions))


def _places(held: Any) -> set[int]:
    """Return the positions of layers or flags; none if it is neither."""
    if type(held) is list and all(hasattr(layer, "__dict__") for layer in held):
        return {*range(len(held))}
    if type(held) is dict and all(type(at) is int and type(flag) is bool for at, flag in held.items()):
        return {*held}
    return set()


@contextmanager
def watching(parts: Iterable[CachePart], uses: PositionUses, *, is_proof: bool) -> Iterator[None]:
    """Enter a context in which it is noted what of these caches is asked for.

    Args:
        parts: Those that a block may use.
        uses: Gets why another position would not do.
        is_proof: A block may ask for what is its own by the number itself.
    """
    noted: list[tuple[CachePart, Any]] = []
    for part in parts:
        if isinstance(part.held, list):
            noted.append((part, NotedLayers(part.held, part.own, uses, is_proof)))
        else:
            noted.append((part, NotedFlags(part.held, part.positions, uses, is_proof)))
    for part, stand_in in noted:
        vars(part.owner)[part.name] = stand_in
    try:
        yield
    finally:
        for part, stand_in in noted:
            if vars(part.owner).get(part.name) is not stand_in:
                uses.faults.append("it replaces the layers of a cache")
            else:
                vars(part.owner)[part.name] = part.held
