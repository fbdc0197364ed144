"""Determine which weights several programs share, from their names. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

from fakexport.error import InvalidValue
from fakexport.files.container import fault_of_name
from fakexport.files.documents import ParallelRecord

from .manifest import METHOD_NAME, MOST_METHODS, Prefix
from .stored_tensor import MethodRecords

Pair = tuple[str, str]
SharedWeight = tuple[Pair, ...]
"""One shared weight: the pair (method, weight name) of each method that uses it."""


def name_in_checkpoint(name: str, prefix: tuple[str, str] | None) -> str:
    """Return the name that a program's weight has in the checkpoint. `Bundle` documents the prefix."""
    if prefix is None or not name.startswith(prefix[1]):
        return name
    return prefix[0] + name.removeprefix(prefix[1])


def check_method_names(methods: Collection[str]) -> None:
    """Raise an `InvalidValue` if a bundle cannot have these methods."""
    if not methods:
        raise InvalidValue("a bundle needs at least one method")
    if len(methods) > MOST_METHODS:
        raise InvalidValue(f"a bundle has at most {MOST_METHODS} methods, got {len(methods)}")
    for method in methods:
        if not isinstance(method, str) or not METHOD_NAME.fullmatch(method):
            raise InvalidValue(
                f"{method!r} is not a valid method name: use a letter, then letters, digits and `_`"
            )
        if fault := fault_of_name(MethodRecords(method).model):
            raise InvalidValue(f"{method!r} is not a valid method name: {fault}")
    lower = {method.lower(): method for method in methods}
    for method in methods:
        if lower[method.lower()] != method:
            raise InvalidValue(f"the methods {method} and {lower[method.lower()]} differ only in case")


def chosen_prefixes(
    known: Mapping[str, Prefix | None],
    given: Mapping[str, str | Prefix],
    weights: Mapping[str, Iterable[str]],
) -> dict[str, Prefix]:
    """Return the prefixes of methods whose weights have different names in the checkpoint.

    Args:
        known: The prefix that each program had in an earlier bundle.
        given: The prefixes that the caller passed, which take precedence.
        weights: The names of each program's weights.

    Raises:
        InvalidValue: A prefix is for an unknown method, or does not match a weight.
    """
    pairs = {method: prefix for method, prefix in known.items() if prefix is not None}
    for method, prefix in given.items():
        pairs[method] = (prefix, "") if isinstance(prefix, str) else prefix
    for method, (_, own) in pairs.items():
        if method not in weights:
            raise InvalidValue(
                f"a prefix was passed for {method!r}, but the methods are {', '.join(weights)}"
            )
        for name in weights[method]:
            if not name.startswith(own):
                raise InvalidValue(
                    f"the name of the weight {name} of {method} does not begin with the prefix {own!r}"
                )
    return {method: pair for method, pair in pairs.items() if pair != ("", "")}


@dataclass(frozen=True)
class NamedTensors:
    """The tensors of a program that other programs may share.

    Args:
        rank: The rank that the program computes. Ranks share no memory, and have different shards of weights.
        keys: Maps each name of a tensor to a key, which is equal for tensors in the same memory.
    """

    rank: ParallelRecord | None
    keys: Mapping[str, Hashable]


def shared_names(
    methods: Mapping[str, NamedTensors], prefixes: Mapping[str, Prefix], known: Iterable[SharedWeight] = ()
) -> tuple[SharedWeight, ...]:
    """Return the weights with the same memory or the same name in the checkpoint, and those in `known`."""
    known_as = {pair: index for index, weight in enumerate(known) for pair in weight}
    union = _Union()
    for method, own in methods.items():
        pairs: dict[Hashable, Pair] = {}
        for name, key in own.keys.items():
            pair = pairs.setdefault(key, (method, name))  # A tied tensor has the first of its names.
            union.join(pair, ("memory", key))
            union.join(pair, ("name", own.rank, name_in_checkpoint(name, prefixes.get(method))))
            if (method, name) in known_as:
                union.join(pair, ("known", known_as[method, name]))
    return tuple(tuple(pairs) for pairs in union.groups() if len(pairs) > 1)


class _Union:
    """A union-find. It groups (method, name) pairs that share a key, directly or through other pairs."""

    def __init__(self) -> None:
        self._parents: dict[Hashable, Hashable] = {}
        self._pairs: dict[Pair, None] = {}

    def join(self, pair: Pair, key: Hashable) -> None:
        self._pairs[pair] = None
        self._parents[self._root(key)] = self._root(("pair", pair))

    def groups(self) -> list[list[Pair]]:
        """Return the groups, ordered by their first pair."""
        found: dict[Hashable, list[Pair]] = {}
        for pair in self._pairs:
            found.setdefault(self._root(("pair", pair)), []).append(pair)
        return list(found.values())

    def _root(self, item: Hashable) -> Hashable:
        path = []
        while (parent := self._parents.setdefault(item, item)) != item:
            path.append(item)
            item = parent
        self._parents.update(dict.fromkeys(path, item))
        return item
