"""Numbers that say where a block is (`layer_idx`), and what a block finds out about its own.

While a block is recorded, a stand-in for the number notes what it is used for. A block that only compares its
number, and takes its own layer of a cache by it, may be made once more at another position, where all
comparisons come out the same. Any other use is a use of the number itself.
"""

from __future__ import annotations

import dis
import functools
import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torch import nn

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
}
_BINARY = "add sub mul truediv floordiv mod pow lshift rshift and xor or"
_LOADS = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF")
_SINGLE = (type(None), bool, type(...))


def positions_of(module: nn.Module, names: frozenset[str]) -> tuple[int, ...]:
    """Return the numbers that these attributes of a module, and of what is inside, have, each once."""
    found = (vars(part).get(name) for part in module.modules() for name in sorted(names))
    return tuple(dict.fromkeys(value for value in found if type(value) is int))


@dataclass(frozen=True)
class Comparison:
    """What a block found out about one of its positions: how that compares with a number."""

    name: str
    position: int
    number: int
    how: str
    outcome: bool

    def holds_for(self, position: int, own: Sequence[int]) -> bool:
        return bool(_COMPARISONS[self.how](position, self.number)) is self.outcome


@dataclass(frozen=True)
class Choice:
    """That a block took by one of its positions what belongs to the one that is `at` among its own."""

    name: str
    position: int
    at: int

    def holds_for(self, position: int, own: Sequence[int]) -> bool:
        return own[self.at] == position


@dataclass
class PositionUses:
    """What the code of one call did with positions, and with what is chosen by them.

    Args:
        own: The positions of the block, each once.
        learned: What it found out about them, and what it chose by them.
        faults: Why no other position can take the place of these.
    """

    own: tuple[int, ...]
    learned: set[Comparison | Choice] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    _made: list[weakref.ref[Position]] = field(default_factory=list)

    def stand_in(self, name: str, value: int, note_use: Callable[[], None]) -> Any:
        """Return what stands for a position, the attribute `name` of a module."""
        made = Position(name, value, self, note_use)
        self._made.append(weakref.ref(made))
        return made

    def chooses(self, position: Position) -> bool:
        """Note that something is chosen by a position; return whether that is one of the block's own."""
        if position.value not in self.own:
            return False
        self.learned.add(Choice(position.name, position.value, self.own.index(position.value)))
        return True

    @property
    def are_kept(self) -> bool:
        """Whether something still has a stand-in."""
        return any(made() is not None for made in self._made)


class Position:
    """A number that says where a block is; it notes everything that is done with it.

    Not a subclass of `int`, which code in C reads without asking. `isinstance` takes it for one.
    """

    __slots__ = ("__weakref__", "_note_use", "_uses", "name", "value")

    def __init__(self, name: str, value: int, uses: PositionUses, note_use: Callable[[], None]) -> None:
        self.name, self.value = name, value
        self._uses, self._note_use = uses, note_use

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def used(self) -> int:
        """Return the number, and note that the code depends on it."""
        self._note_use()
        return self.value

    def compared(self, how: str, other: Any) -> Any:
        if type(other) is Position:
            other = other.used()
        if type(other) is not int:
            return _COMPARISONS[how](self.used(), other)
        outcome = bool(_COMPARISONS[how](self.value, other))
        self._uses.learned.add(Comparison(self.name, self.value, other, how, outcome))
        return outcome

    def __bool__(self) -> bool:
        return bool(self.compared("__ne__", 0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.used(), name)


def _number(value: Any) -> Any:
    return value.used() if type(value) is Position else value


def _forwarded(name: str) -> Callable[..., Any]:
    def method(position: Position, *args: Any) -> Any:
        return getattr(position.used(), name)(*map(_number, args))

    return method


def _binary(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    compute = getattr(operator, f"__{name}__")
    return (
        lambda position, other: compute(position.used(), _number(other)),
        lambda position, other: compute(other, position.used()),
    )


for _name in _COMPARISONS:
    setattr(Position, _name, functools.partialmethod(Position.compared, _name))
for _name in _BINARY.split():
    _method, _reflected = _binary(_name)
    setattr(Position, f"__{_name}__", _method)
    setattr(Position, f"__r{_name}__", _reflected)
_OWN = {*vars(Position), *vars(object)} - {"__repr__", "__str__", "__format__", "__reduce__", "__reduce_ex__"}
for _name in {*vars(int), "__reduce__", "__reduce_ex__"} - _OWN | {"__hash__"}:
    if _name.startswith("__") and callable(getattr(int, _name)):
        setattr(Position, _name, _forwarded(_name))


@functools.cache
def tells_stand_ins(code: CodeType) -> bool:
    """Return whether code may tell a stand-in for a number from a number.

    It asks for the type of anything but `self`, or whether something is the same object as anything but None,
    a truth value, `...`, or the function itself.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    for before, step, after in zip([None, *steps], steps, [*steps[1:], None], strict=False):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "type" and not _is_self(after):
            return True
        if step.opname == "IS_OP" and not _is_single(before, code):
            return True
    return False


def _is_self(step: dis.Instruction | None) -> bool:
    return step is not None and step.opname in _LOADS and step.argval == "self"


def _is_single(step: dis.Instruction | None, code: CodeType) -> bool:
    if step is None or step.opname != "LOAD_CONST":
        return step is not None and step.opname == "LOAD_DEREF" and step.argval == code.co_name
    return isinstance(step.argval, _SINGLE)
