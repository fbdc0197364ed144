"""Pytree functions that use the same registry of containers as `torch.export`. Seen on torch 2.11 to 2.13.

Source: `torch/utils/_pytree.py`. The public `torch.utils.pytree` may select a different implementation, which
has a registry of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of a pytree, in export's order."""
    return _pytree.tree_leaves(tree)


def has_tensor(tree: Any) -> bool:
    """Return whether any leaf of a pytree is a tensor."""
    return any(isinstance(leaf, torch.Tensor) for leaf in _pytree.tree_leaves(tree))


def container_children(value: Any) -> list[Any] | None:
    """Return the direct children of a registered container, or None if `value` is a leaf."""
    node = _pytree.SUPPORTED_NODES.get(type(value))
    return None if node is None else list(node.flatten_fn(value)[0])


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a copy of a pytree with `function` applied to each leaf."""
    return _pytree.tree_map(function, tree)


def tree_flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the `TreeSpec` of a pytree."""
    return _pytree.tree_flatten(tree)


def tree_unflatten(leaves: list[Any], spec: Any) -> Any:
    """Build the container that a `TreeSpec` describes from its leaves."""
    return _pytree.tree_unflatten(leaves, spec)
