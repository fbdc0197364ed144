"""What a function of `functools.lru_cache` keeps between its calls."""

from __future__ import annotations

import inspect
import types
from typing import Any

from fakexport.fake import kept_by

from .observed_values import BUILT_IN, CONSTANTS, VALUES


def keeps_only_values(cached: Any) -> bool:
    """Return whether the arguments and results that a cached function keeps are all plain values."""
    return all(map(_is_unchanging, kept_by(cached)))


def _is_unchanging(value: Any) -> bool:
    if type(value) is object:  # A mark, as `functools` puts between arguments and keywords.
        return True
    if type(value) in (tuple, frozenset):
        return all(map(_is_unchanging, value))
    kinds = (type, types.FunctionType, types.ModuleType, inspect.Signature, *BUILT_IN, *CONSTANTS)
    return type(value) in VALUES or isinstance(value, kinds) or type(value).__name__ == "_lru_list_elem"
