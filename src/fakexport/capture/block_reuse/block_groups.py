"""Which blocks of a model are of one kind, and which call of them is the last one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from torch import nn

# So many blocks of a kind are traced in any case, and so many more of all kinds are worth the look.
_TRACED = 4
_FEWEST = 3
# So many are worth a second proof on the way.
_MANY = 24
_NUMBERS = re.compile(r"\d+")
_PLAIN = (bool, int, float, str, type(None))


@dataclass
class Likes:
    """Blocks of one group whose plain attributes repeat: every sliding layer, or every full one.

    Args:
        members: The `id` of each.
        waiting: Those that were not called yet.
        answered: Sizes of the inputs of the last call that was not traced, until one is compared. Blocks of
            another resolution come last then, and nothing proves the earlier ones: the sooner that is
            known, the less is traced in vain.
    """

    members: frozenset[int]
    waiting: set[int] = field(default_factory=set)
    answered: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        self.waiting |= self.members

    def needs_proof(self, module: nn.Module) -> bool:
        """Note a call, and return whether it is to be traced: as far as can be told, it is the last one.

        One about half the way is traced as well. What alternates with a period of two or three would be the
        same in both, so the number of calls between them is a multiple of neither.
        """
        self.waiting.discard(id(module))
        if not self.waiting:
            self.waiting |= self.members  # There may be another round.
            return True
        return len(self.members) >= _MANY and len(self.waiting) == len(self.members) // 12 * 6 + 1

    @property
    def is_one_left(self) -> bool:
        """Whether only one of them was not called yet."""
        return len(self.waiting) == 1


@dataclass(frozen=True)
class Group:
    """Blocks with the same classes at the same places.

    Args:
        shape: The same object for all of them.
        differing: Names of plain attributes that are not the same in all of them.
        positions: Those of numbers that are never the same: they say where a block is.
        likes: Those that a block is like, by its `id`.
        inner: Names of the modules inside of a block, from the block.
    """

    shape: Any
    differing: frozenset[str]
    positions: frozenset[str]
    likes: dict[int, Likes]
    inner: tuple[str, ...]


def groups_of(model: nn.Module) -> dict[int, Group]:
    """Return the group of each block that has enough others like it, by `id`."""
    members: dict[Any, dict[str, nn.Module]] = {}
    shapes: dict[int, Any] = {}
    for name, module in model.named_modules():
        if any(True for _ in module.children()):
            members.setdefault(_shape(module, shapes), {})[name] = module
    members = {shape: named for shape, named in members.items() if len(named) >= _TRACED + _FEWEST}
    around = {name: at for at, named in enumerate(members.values()) for name in named}
    found: dict[int, Group] = {}
    for shape, modules in members.items():
        differing = _differing([*modules.values()])
        likes = _likes(modules, differing, around)
        if sum(max(0, len(each.members) - _TRACED) for each in _distinct(likes)) >= _FEWEST:
            positions = frozenset(name for name in differing if _is_position(name, [*modules.values()]))
            first = next(iter(modules.values()))
            inner = tuple(name for name, _ in first.named_modules(remove_duplicate=False) if name)
            group = Group(shape, differing, positions, likes, inner)
            found.update({member: group for member, like in likes.items() if len(like.members) > _TRACED})
    return found


def _distinct(likes: dict[int, Likes]) -> list[Likes]:
    return [*{id(each): each for each in likes.values()}.values()]


def _shape(module: nn.Module, known: dict[int, Any]) -> Any:
    found = known.get(id(module))
    if found is None:
        children = tuple((name, _shape(child, known)) for name, child in module.named_children())
        found = known[id(module)] = (type(module), children)
    return found


def _differing(modules: list[nn.Module]) -> frozenset[str]:
    found: set[str] = set()
    first = list(modules[0].modules())
    for module in modules[1:]:
        for one, other in zip(first, module.modules(), strict=False):
            mine, theirs = vars(one), vars(other)
            for name in mine.keys() & theirs.keys():
                a, b = mine[name], theirs[name]
                if isinstance(a, _PLAIN) and (type(a) is not type(b) or a != b):
                    found.add(name)
    return frozenset(found)


def _is_position(name: str, modules: list[nn.Module]) -> bool:
    """Return whether an attribute of blocks is a number that no two of them have."""
    found = [[vars(part)[name] for part in module.modules() if name in vars(part)] for module in modules]
    if any(type(value) is not int for values in found for value in values):
        return False
    return all(len(set(column)) == len(modules) for column in zip(*found, strict=False))


def _likes(
    named: dict[str, nn.Module], differing: frozenset[str], around: dict[str, int]
) -> dict[int, Likes]:
    """Return the blocks that each block is like: at such a place, with such weights and attributes.

    An attribute that is never the same is a position. Blocks inside of others that are reused as a whole are
    not like those that are not: their last call may never come.
    """
    modules = [*named.values()]
    names = sorted(differing)
    rows = [[repr(vars(part).get(name)) for part in m.modules() for name in names] for m in modules]
    columns = [column for column in zip(*rows, strict=False) if len(set(column)) < len(modules)]
    labels = list(zip(*columns, strict=True)) or [()] * len(modules)
    if len(set(labels)) > len(modules) // 3:
        labels = [()] * len(modules)
    alike: dict[Any, list[int]] = {}
    for (name, module), label in zip(named.items(), labels, strict=True):
        place = _NUMBERS.sub("", name), _outer(name, around), _weights(module)
        alike.setdefault((place, label), []).append(id(module))
    kinds = [Likes(frozenset(members)) for members in alike.values()]
    return {member: kind for kind in kinds for member in kind.members}


def _outer(name: str, around: dict[str, int]) -> tuple[int, ...]:
    """Return which groups the modules around a module are of."""
    parts = name.split(".")
    paths = (".".join(parts[:at]) for at in range(1, len(parts)))
    return tuple(around[path] for path in paths if path in around)


def _weights(module: nn.Module) -> tuple[Any, ...]:
    """Return sizes, dtypes and devices: what has others is never made from the same template."""
    return tuple((weight.shape, weight.dtype, str(weight.device)) for weight in module.parameters())
