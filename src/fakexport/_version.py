"""The version of fakexport, and the torch versions that it expects: the only place that states them."""

__version__ = "0.1.0"

OLDEST_TORCH = (2, 11)
NEWEST_TORCH = (2, 15)
"""docs/support.md lists what was tested with each version. A newer torch is accepted, with a warning."""
