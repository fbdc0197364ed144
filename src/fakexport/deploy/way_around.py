"""Library operators that a setting of the model avoids."""

from __future__ import annotations

_SETTINGS = {
    # transformers/integrations/moe.py: this variant of `ExpertsInterface` copies the matrices of each token's
    # experts, and multiplies them as one batch with operators of torch alone.
    "transformers.grouped_mm_fallback.default": (
        'set `"experts_implementation": "batched_mm"` in the config.json and export again: the '
        "experts then use torch matrix products"
    ),
}


def way_around(operator: str) -> str | None:
    """Return the setting that exports a model without an operator; None if none is known.

    Args:
        operator: `acme.scale.default`.
    """
    return _SETTINGS.get(operator)
