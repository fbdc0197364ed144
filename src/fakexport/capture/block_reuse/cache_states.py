"""What a block writes into the caches that it uses: attributes of its layers, and its flags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fakexport._torch.block_recordings import NotReplayable

from .cache_parts import CachePart

_ABSENT: Any = object()


@dataclass(frozen=True)
class CacheStates:
    """The mappings that a block may write into, as they were before it.

    Args:
        mappings: The attributes of each of its layers, and all flags of each cache.
        numbers: For flags, the positions of the block: what is written is named by their places.
        before: What the mappings held.
    """

    mappings: tuple[dict[Any, Any], ...] = field(repr=False)
    numbers: tuple[tuple[int, ...] | None, ...]
    before: tuple[dict[Any, Any], ...] = field(repr=False)

    @classmethod
    def of(cls, parts: Iterable[CachePart]) -> CacheStates:
        found: dict[int, tuple[dict[Any, Any], tuple[int, ...] | None]] = {}
        for part in parts:
            if isinstance(part.held, dict):
                found[id(part.held)] = part.held, part.positions
            else:
                found |= {id(layer): (vars(layer), None) for layer in part.own}
        mappings = tuple(mapping for mapping, _ in found.values())
        return cls(mappings, tuple(own for _, own in found.values()), tuple(map(dict, mappings)))

    def written(self) -> dict[tuple[int, Any], Any]:
        """Return what is another object now, by the place of the mapping and the name in it.

        Raises:
            NotReplayable: One is gone.
        """
        found: dict[tuple[int, Any], Any] = {}
        for at, (mapping, own, before) in enumerate(
            zip(self.mappings, self.numbers, self.before, strict=True)
        ):
            if not mapping.keys() >= before.keys():
                raise NotReplayable("it removes an attribute of a layer of a cache")
            for key, value in mapping.items():
                if value is not before.get(key, _ABSENT):
                    found[at, key if own is None else own.index(key)] = value
        return found

    def write(self, values: Mapping[tuple[int, Any], Any]) -> None:
        """Set what `written` returned for another call."""
        for (at, name), value in values.items():
            own = self.numbers[at]
            self.mappings[at][name if own is None else own[name]] = value

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Enter a context in which the caches are as they were before the call."""
        after = [dict(mapping) for mapping in self.mappings]
        self._set(self.before)
        try:
            yield
        finally:
            self._set(after)

    def _set(self, states: Iterable[dict[Any, Any]]) -> None:
        for mapping, state in zip(self.mappings, states, strict=True):
            mapping.clear()
            mapping.update(state)
