"""Nested containers as `torch.export` sees them. Seen on torch 2.11 to 2.13.

Source: `torch/utils/_pytree.py`; the public `torch.utils.pytree` may choose another implementation, which
knows other registered containers than export does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of a nested container, in export's order."""
    return _pytree.tree_leaves(tree)


def container_children(value: Any) -> list[Any] | None:
    """Return the children of a registered container, one level down, or None where `value` is a leaf."""
    node = _pytree.SUPPORTED_NODES.get(type(value))
    return None if node is None else list(node.flatten_fn(value)[0])


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same container with `function` applied to each leaf."""
    return _pytree.tree_map(function, tree)


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a nested container, and its structure, which says what else is in it."""
    return _pytree.tree_flatten(tree)


def tree_unflatten(leaves: list[Any], spec: Any) -> Any:
    """Return the container of a structure that export wrote down, with these leaves."""
    return _pytree.tree_unflatten(leaves, spec)
