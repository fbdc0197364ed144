"""The input leaves of a call, with the paths by which torch's guards refer to them."""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]
"""Name of an argument, then indices and keys: `("d", "a", 0)` for `d["a"][0]`."""

_MAPPINGS = (dict, OrderedDict, defaultdict)
_NOT_OF_A_NAME = re.compile(r"[^a-zA-Z0-9]")


@dataclass(frozen=True)
class InputLeaf:
    """A leaf in the pytree of a call's arguments.

    Args:
        name: Name of the leaf's placeholder in the program.
        path: Path to the leaf in the arguments. None if the leaf is inside a container that is not plain
            Python.
        rank: Number of dimensions of a tensor. None for a number or another constant.
        constant: The value with which the program was exported, if the leaf is a constant; otherwise `...`.
    """

    name: str
    path: Path | None
    rank: int | None
    constant: Any = ...


def input_leaves(
    structure: Any, argument_names: Sequence[str], leaves: Sequence[tuple[str, int | None, Any]]
) -> tuple[InputLeaf, ...]:
    """Return the leaves of the arguments in the order of the flat call.

    Args:
        structure: torch's `in_spec`: a tuple of positional arguments, and a dict of keyword arguments.
        argument_names: The known names of positional arguments. There can be more arguments than names.
        leaves: The name, rank and constant of each leaf; see `InputLeaf`.
    """
    positional, keywords = structure.children()
    names = [*argument_names[: positional.num_children]]
    names += [f"arg_{index}" for index in range(len(names), positional.num_children)]
    paths: list[Path | None] = []
    for name, part in zip(
        (*names, *keywords.context), (*positional.children(), *keywords.children()), strict=True
    ):
        paths += _paths(part, (name,))
    if len(paths) != len(leaves):  # The inputs were flattened, so their paths are unknown.
        paths = [None] * len(leaves)
    return tuple(
        InputLeaf(name, path, rank, constant)
        for path, (name, rank, constant) in zip(paths, leaves, strict=True)
    )


def _paths(structure: Any, path: Path) -> Iterator[Path | None]:
    if structure.is_leaf():
        yield path
        return
    if structure.type in (tuple, list):
        keys: Sequence[Any] = range(structure.num_children)
    elif structure.type in _MAPPINGS:
        keys = structure.context[1] if structure.type is defaultdict else structure.context
    else:
        yield from (None for _ in range(structure.num_leaves))
        return
    for key, child in zip(keys, structure.children(), strict=True):
        yield from _paths(child, (*path, key))


def leaf_at(leaves: Sequence[InputLeaf], path: Path) -> tuple[InputLeaf, Path] | None:
    """Return the leaf that a prefix of a path refers to, and the remaining path.

    Return None if no leaf, or more than one leaf, matches.

    torch refers to a leaf by its path in the original signature, or by its index (`flat_args`). Arguments of
    `*args` have different names in the program (`args_0`). Leaves of a registered class are found by the name
    of their placeholder.
    """
    exact = {leaf.path: leaf for leaf in leaves if leaf.path is not None}
    candidates = [path]
    if len(path) > 1 and type(path[1]) is int:
        candidates.append((f"{path[0]}_{path[1]}", *path[2:]))
    for candidate in candidates:
        for end in range(1, len(candidate) + 1):
            if (leaf := exact.get(candidate[:end])) is not None:
                return leaf, candidate[end:]
    match path:
        case ("flat_args", int(index), *rest) if 0 <= index < len(leaves):
            return leaves[index], tuple(rest)
    return _by_name(leaves, path)


def _by_name(leaves: Sequence[InputLeaf], path: Path) -> tuple[InputLeaf, Path] | None:
    """Like `leaf_at`, for leaves without a path, which are found by the name of their placeholder."""
    found = []
    for end in range(1, len(path) + 1):
        name = _NOT_OF_A_NAME.sub("_", "_".join(map(str, path[:end]))).lower()
        found += [(leaf, path[end:]) for leaf in leaves if leaf.path is None and leaf.name.lower() == name]
        if found and any(leaf.path is None and leaf.name.lower() == f"{name}_1" for leaf in leaves):
            return None
    return found[0] if len(found) == 1 else None
