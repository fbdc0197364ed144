"""A source that is already there: a factory or a module in the caller's hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from fakexport.error import InvalidType
from fakexport.sources.python_factory import check_arguments, checked, no_inputs
from fakexport.sources.source import Source


def callable_source(factory: Callable[[], Any] | nn.Module) -> Source:
    """Return the source of a factory, or of a module whose weights are not read.

    Args:
        factory: As `resolve` finds them in files; its name stands for the spec.
    Raises:
        TypeError: neither a module nor an ExportedProgram.
        SourceError: it cannot be called without arguments.
    """
    if not callable(factory):
        raise InvalidType(f"a source must be a string, a factory or a module, not {type(factory).__name__}")
    name = getattr(factory, "__name__", type(factory).__name__)
    if not isinstance(factory, nn.Module):
        check_arguments(factory, name)

    is_made = isinstance(factory, nn.Module)
    return Source(
        spec=name,
        kind="python",
        factory=factory if is_made else lambda: checked(factory(), name),
        example_inputs=no_inputs(name),
    )
