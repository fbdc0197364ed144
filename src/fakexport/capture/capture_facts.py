"""The facts of a program at its capture, in Python as on the command line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fakexport.program.program_facts import ProgramFacts
from fakexport.sources import dtype_text

__all__ = ["facts_at_capture", "loaded_libraries"]

_LIBRARIES = ("transformers", "timm")
_NOT_STRICT = "traced by running the Python code, not checked by TorchDynamo (--strict)"


def facts_at_capture(
    *,
    source: str,
    topology: str,
    device_map: Mapping[str, str],
    dtype: torch.dtype | None,
    dynamic_shapes: Any,
    assumptions: Sequence[str],
    is_strict: bool,
) -> ProgramFacts:
    """What is known of a program before it is captured.

    Args:
        source, topology, dtype: As for `ProgramFacts`.
        device_map: Where the modules are.
        dynamic_shapes: As the caller gave it; what torch takes is not text, and the program has the ranges.
        assumptions: What was taken for granted, one sentence each.
        is_strict: Whether TorchDynamo traced it.
    """
    return ProgramFacts(
        source=source,
        topology=topology,
        device_map=dict(device_map),
        dtype=None if dtype is None else dtype_text(dtype),
        dynamic_shapes=_dynamic_text(dynamic_shapes),
        skipped_checks=(*assumptions, *([] if is_strict else [_NOT_STRICT])),
        versions=loaded_libraries(),
    )


def loaded_libraries() -> dict[str, str]:
    """The versions of model libraries that took part, by name."""
    return {name: str(sys.modules[name].__version__) for name in _LIBRARIES if name in sys.modules}


def _dynamic_text(dynamic_shapes: Any) -> str | None:
    if isinstance(dynamic_shapes, str):
        return dynamic_shapes
    is_list = isinstance(dynamic_shapes, (list, tuple)) and bool(dynamic_shapes)
    if is_list and all(isinstance(text, str) for text in dynamic_shapes):
        return ", ".join(dynamic_shapes)
    return None
