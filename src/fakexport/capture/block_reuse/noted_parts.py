"""What stands for the layers and the flags of a cache while a block is recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fakexport._torch.copied_values import TraceNeeded

from .positions import Position, PositionUses

_FAULT = "it uses layers of a cache that are not its own"


class _HiddenLayer:
    """What code in C finds in place of a layer that is not the block's own."""

    def __getattribute__(self, name: str) -> Any:
        raise TraceNeeded("a block looks at all layers of a cache")


class NotedLayers(list[Any]):
    """The layers of a cache; only the block's own may be asked for.

    Args:
        layers: All of them.
        own: Those of the block.
        uses: Gets why another position would not do.
        is_proof: The block may ask for its own layer by the number itself.
    """

    def __init__(self, layers: list[Any], own: Collection[Any], uses: PositionUses, is_proof: bool) -> None:
        self._own = {id(layer) for layer in own}
        super().__init__(layer if id(layer) in self._own else _HiddenLayer() for layer in layers)
        self._held, self._uses, self._is_proof = layers, uses, is_proof

    def __getitem__(self, at: Any) -> Any:
        if type(at) is Position:
            return self._held[at.value] if self._uses.chooses(at) else self.other("__getitem__", at.used())
        found = self._held[at]
        return found if self._is_proof and id(found) in self._own else self.other("__getitem__", at)

    def __len__(self) -> int:
        return len(self._held)

    def other(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self._uses.faults.append(_FAULT)
        return getattr(self._held, name)(*args, **kwargs)


class NotedFlags:
    """The flags of a cache by position; only the block's own may be asked for.

    Not a subclass of `dict`, which code in C reads without asking: it cannot read this. `isinstance` takes it
    for one.

    Args:
        flags: All of them.
        own: The positions of the block.
        uses, is_proof: As for layers.
    """

    def __init__(
        self, flags: dict[int, bool], own: Collection[int], uses: PositionUses, is_proof: bool
    ) -> None:
        self._held, self._own, self._uses, self._is_proof = flags, own, uses, is_proof

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return dict

    def __getitem__(self, at: Any) -> Any:
        return self._held[self._number(at)]

    def __setitem__(self, at: Any, flag: Any) -> None:
        if type(flag) is not bool:
            self._uses.faults.append("it keeps in a cache what is not a flag")
        self._held[self._number(at)] = flag

    def __contains__(self, at: Any) -> bool:
        return self._number(at) in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, at: Any, default: Any = None) -> Any:
        return self._held.get(self._number(at), default)

    def _number(self, at: Any) -> Any:
        """Return what a flag is asked for by, and note whether it is the block's own."""
        is_plain = self._is_proof and type(at) is int and at in self._own
        is_own = self._uses.chooses(at) if type(at) is Position else is_plain
        number = at.value if type(at) is Position else at
        if not is_own:
            self._uses.faults.append(_FAULT)
        return number

    def other(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self._uses.faults.append(_FAULT)
        return getattr(self._held, name)(*args, **kwargs)


def _noted(name: str) -> Callable[..., Any]:
    def method(part: Any, *args: Any, **kwargs: Any) -> Any:
        return part.other(name, *args, **kwargs)

    return method


_KEPT = {"__new__", "__getattribute__", "__class_getitem__"}
for _noting, _kind in ((NotedLayers, list), (NotedFlags, dict)):
    for _name in {*vars(_kind), "__reduce_ex__", "__format__", "__str__"} - {*vars(_noting), *_KEPT}:
        if callable(getattr(_kind, _name)):
            setattr(_noting, _name, _noted(_name))
