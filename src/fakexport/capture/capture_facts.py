"""The facts of a program at its capture, in Python as on the command line."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from fakexport._libraries import PACKAGES
from fakexport.devices import Topology
from fakexport.fake import Built
from fakexport.program import ProgramFacts
from fakexport.sources import ExampleInputs, Source, dtype_text

from .dynamic_dims import dynamic_texts

_NOT_STRICT = "traced by running the Python code, not checked by TorchDynamo (--strict)"


def facts_at_capture(
    source: Source,
    devices: Topology,
    built: Built,
    inputs: ExampleInputs,
    *,
    dtype: torch.dtype | None,
    dynamic_shapes: Any,
    is_strict: bool,
) -> ProgramFacts:
    """Return what is known of a program before it is captured."""
    assumptions = dict.fromkeys((*devices.assumptions, *source.assumptions, *inputs.assumptions))
    chosen = dtype or source.dtype
    return ProgramFacts(
        source=source.spec,
        topology=devices.canonical,
        profiles=tuple(device.profile.name for device in devices.devices),
        device_map=dict(built.placement.device_map),
        dtype=None if chosen is None else dtype_text(chosen),
        dynamic_shapes=", ".join(dynamic_texts(dynamic_shapes) or ()) or None,
        skipped_checks=(*assumptions, *source.left_out, *([] if is_strict else [_NOT_STRICT])),
        versions=_libraries_of(built.module),
        call=inputs.call,
        component=source.component,
        adapter=None if source.adapter is None else source.adapter.record(built.module, inputs),
        parallel=None if source.parallel is None else source.parallel.record(built.module),
    )


def _libraries_of(model: nn.Module) -> dict[str, str]:
    """Return the versions of model libraries that the model is made of, by name."""
    used = {type(part).__module__.partition(".")[0] for part in model.modules()}
    return {name: version for name, version in loaded_libraries().items() if name in used}


def loaded_libraries() -> dict[str, str]:
    """Return the versions of imported model libraries by name: `unknown` for one without `__version__`."""
    imported = {name: module for name in PACKAGES if (module := sys.modules.get(name)) is not None}
    return {name: str(getattr(module, "__version__", "unknown")) for name, module in imported.items()}
