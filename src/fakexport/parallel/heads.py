"""Attention heads are whole on one rank, or the model computes something else."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from .degrees import DegreeMismatch, Degrees


def check_heads(modules: Mapping[str, nn.Module], plan: Mapping[str, str], degrees: Degrees) -> None:
    """Refuse a degree that cuts heads: a model may reshape the parts without an error.

    Args:
        modules: Those of the model, by name. An attention has `head_dim` or `num_heads`, and its projections
            have multiples of that as outputs.
        plan: Style by name.
        degrees: The degree of tensor parallelism has to divide the heads of each projection.
    Raises:
        DegreeMismatch: It does not.
    """
    for name, style in plan.items():
        width = getattr(modules.get(name), "out_features", None)
        if style != "colwise" or not isinstance(width, int):
            continue
        heads = _heads(modules[name.rpartition(".")[0]], width)
        if heads is not None and heads % degrees.tensor:
            raise DegreeMismatch(f"tp={degrees.tensor} does not divide the {heads} heads of {name}")


def _heads(owner: nn.Module, width: int) -> int | None:
    """Return how many heads a projection of so many features has; None if its owner has none."""
    head, heads = getattr(owner, "head_dim", None), getattr(owner, "num_heads", None)
    if isinstance(head, int) and head > 0 and width % head == 0:
        return width // head
    if isinstance(heads, int) and heads > 0 and width % heads == 0:
        return heads
    return None
