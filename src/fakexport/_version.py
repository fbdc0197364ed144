"""The version of fakexport, and the torch versions that it expects: the only place that states them."""

__version__ = "0.1.0"

OLDEST_TORCH = (2, 11)
NEWEST_TORCH = (2, 15)
"""docs/support.md says what was run on each. A newer torch is used, with a warning."""
