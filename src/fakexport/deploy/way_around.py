"""Operators of libraries that a setting of the model avoids."""

from __future__ import annotations

__all__ = ["way_around"]

_SETTINGS = {
    # transformers/integrations/moe.py: this variant of `ExpertsInterface` copies the matrices of each token's
    # experts, and multiplies them as one batch with operators of torch alone.
    "transformers.grouped_mm_fallback.default": (
        'put `"experts_implementation": "batched_mm"` into the config.json and export again: the experts are '
        "then products of torch"
    ),
}


def way_around(operator: str) -> str | None:
    """What to set so that a model is exported without an operator; None where nothing is known.

    Args:
        operator: `acme.scale.default`.
    """
    return _SETTINGS.get(operator)
