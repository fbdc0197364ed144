"""A cache of which each block uses the layer at its own position, and no other.

`Cache` of transformers is a list of layers, and a block says by a number (`layer_idx`) which one is its own.
While a block is recorded, the list notes which layers are asked for.

Source: `transformers/cache_utils.py:Cache.update`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fakexport._torch.block_recordings import NotReplayable
from fakexport._torch.copied_values import TraceNeeded

from .positions import Position, PositionUses

_LAYERS = "layers"
_ABSENT: Any = object()


@dataclass(frozen=True)
class CacheLayers:
    """The layers of a cache, as far as a block may use them.

    Args:
        owner: The cache; `layers` is an attribute of it.
        layers: All of them.
        own: Those at the positions of the block, in the order of these.
    """

    owner: Any = field(repr=False)
    layers: list[Any] = field(repr=False)
    own: tuple[Any, ...] = field(repr=False)


def cache_layers(value: Any, attributes: Mapping[str, Any], positions: Collection[int]) -> CacheLayers | None:
    """Return the layers of a cache of transformers; None for anything else.

    Args:
        value: Any object.
        attributes: Its `__dict__`.
        positions: The numbers of the block, which no other block has.
    """
    kinds = type(value).__mro__
    if not any(kind.__name__ == "Cache" and kind.__module__ == "transformers.cache_utils" for kind in kinds):
        return None
    if any(_LAYERS in vars(kind) or "__getattribute__" in vars(kind) for kind in kinds[:-1]):
        return None
    layers = attributes.get(_LAYERS)
    if type(layers) is not list or not all(hasattr(layer, "__dict__") for layer in layers):
        return None
    if not positions or not all(0 <= at < len(layers) for at in positions):
        return None
    return CacheLayers(value, layers, tuple(layers[at] for at in positions))


@contextmanager
def watching(caches: Iterable[CacheLayers], uses: PositionUses, *, is_proof: bool) -> Iterator[None]:
    """Enter a context in which the layers of these caches are noted as they are asked for.

    Args:
        caches: Those that a block may use.
        uses: Gets why another position would not do.
        is_proof: A block may ask for its own layer by the number itself.
    """
    noted = [(cache, _NotedLayers(cache, uses, is_proof)) for cache in caches]
    for cache, layers in noted:
        vars(cache.owner)[_LAYERS] = layers
    try:
        yield
    finally:
        for cache, layers in noted:
            if vars(cache.owner).get(_LAYERS) is not layers:
                uses.faults.append("it replaces the layers of a cache")
            else:
                vars(cache.owner)[_LAYERS] = cache.layers


class _HiddenLayer:
    """What code in C finds in place of a layer that is not the block's own."""

    def __getattribute__(self, name: str) -> Any:
        raise TraceNeeded("a block looks at all layers of a cache")


class _NotedLayers(list[Any]):
    """The layers of a cache while a block is recorded; only the block's own may be asked for."""

    def __init__(self, cache: CacheLayers, uses: PositionUses, is_proof: bool) -> None:
        self._own = {id(layer) for layer in cache.own}
        super().__init__(layer if id(layer) in self._own else _HiddenLayer() for layer in cache.layers)
        self._layers, self._uses, self._is_proof = cache.layers, uses, is_proof

    def __getitem__(self, at: Any) -> Any:
        if type(at) is Position:
            return self._layers[at.value] if self._uses.chooses(at) else self.other("__getitem__", at.used())
        found = self._layers[at]
        return found if self._is_proof and id(found) in self._own else self.other("__getitem__", at)

    def __len__(self) -> int:
        return len(self._layers)

    def other(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self._uses.faults.append("it uses layers of a cache that are not its own")
        return getattr(self._layers, name)(*args, **kwargs)


def _noted(name: str) -> Callable[..., Any]:
    def method(layers: _NotedLayers, *args: Any, **kwargs: Any) -> Any:
        return layers.other(name, *args, **kwargs)

    return method


for _name in {*vars(list), "__reduce_ex__", "__format__", "__str__"} - {
    *vars(_NotedLayers),
    *("__new__", "__getattribute__", "__class_getitem__"),
}:
    if callable(getattr(list, _name)):
        setattr(_NotedLayers, _name, _noted(_name))


@dataclass(frozen=True)
class LayerStates:
    """The attributes of the layers that a block may use, as they were before it."""

    layers: tuple[Any, ...] = field(repr=False)
    before: tuple[dict[str, Any], ...] = field(repr=False)

    @classmethod
    def of(cls, caches: Iterable[CacheLayers]) -> LayerStates:
        layers = tuple({id(layer): layer for cache in caches for layer in cache.own}.values())
        return cls(layers, tuple(dict(vars(layer)) for layer in layers))

    def written(self) -> dict[tuple[int, str], Any]:
        """Return the attributes that are other objects now, by the layer's place and their names.

        Raises:
            NotReplayable: One is gone.
        """
        found: dict[tuple[int, str], Any] = {}
        for at, (layer, before) in enumerate(zip(self.layers, self.before, strict=True)):
            if not vars(layer).keys() >= before.keys():
                raise NotReplayable("it removes an attribute of a layer of a cache")
            for name, value in vars(layer).items():
                if value is not before.get(name, _ABSENT):
                    found[at, name] = value
        return found

    def write(self, values: Mapping[tuple[int, str], Any]) -> None:
        """Set what `written` returned for another call."""
        for (at, name), value in values.items():
            vars(self.layers[at])[name] = value

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Enter a context in which the layers are as they were before the call."""
        after = [dict(vars(layer)) for layer in self.layers]
        self._set(self.before)
        try:
            yield
        finally:
            self._set(after)

    def _set(self, states: Iterable[dict[str, Any]]) -> None:
        for layer, state in zip(self.layers, states, strict=True):
            vars(layer).clear()
            vars(layer).update(state)
