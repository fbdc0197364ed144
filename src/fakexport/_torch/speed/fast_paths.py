"""All fast paths of a trace except the operator memo. Seen on torch 2.11 to 2.15."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module

from fakexport.error import is_missing_for_speed

from .switch import is_fast

log = logging.getLogger(__name__)

_PATHS = {
    "simplified_sizes": "sizes_simplified_once",
    "export_passes": "quick_passes",
    "node_stack_traces": "quick_stack_traces",
    "remembered_metadata": "remembered_metadata",
}
"""Module names, each with the name of its function that returns a context."""


@contextmanager
def fast_paths(*names: str) -> Iterator[None]:
    """Enter a context with these fast paths (default: all), except those that this torch cannot support."""
    with ExitStack() as stack:
        for name in (names or _PATHS) if is_fast() else ():
            try:
                stack.enter_context(getattr(import_module(f"{__package__}.{name}"), _PATHS[name])())
            except (AttributeError, ImportError) as error:
                if not is_missing_for_speed(error):
                    raise
                log.info("%s is off: %s", name, error)
        yield
