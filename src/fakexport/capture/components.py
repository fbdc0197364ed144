"""Which components a model has."""

from __future__ import annotations

from typing import Any

import torch

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.devices import Topology, emulate
from fakexport.fake import install_transfers
from fakexport.sources import SourceError, components_of, parse_dtype, resolve

from .built_source import build_source


def components(
    source: Any, *, target: str | Topology = "cpu", dtype: torch.dtype | str | None = None
) -> tuple[str, ...]:
    """Return the names of the parts that make up a whole multimodal model, in the order in which they run.

    Export each with `export(source, component=name)`, and write them as one file with `save_bundle`.

    Args:
        source: An `hf:` model, such as `hf:config.json`.
        target, dtype: As for `export`.
    Raises:
        SourceError: It is not an `hf:` model, has no such components, or does not run on its example inputs.
        FakexportError: As for `export`.

    Example:
        >>> components("hf:no/config.json")
        Traceback (most recent call last):
        fakexport.sources.source_error.SourceError: no such file: no/config.json
    """
    found = resolve(source)
    if found.kind != "transformers":
        raise SourceError(f"components are of hf: models, which {found.spec} is not")
    chosen = None if dtype is None else parse_dtype(dtype)
    with torch_logs_silenced(), emulate(target) as devices:
        built = build_source(found, devices, dtype=chosen)
        with built.mode, install_transfers(built.module, built.placement):
            return components_of(found, built.module, built.placement.input_device, chosen or found.dtype)
