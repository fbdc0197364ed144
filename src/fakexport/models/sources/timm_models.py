"""Sources from timm: `timm:NAME`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fakexport.models.sources.source import ExampleInputs, Source
from fakexport.models.sources.source_error import SourceError, did_you_mean, import_library

BATCH = 2


def timm_source(spec: str, name: str) -> Source:
    """Return the source of a timm model with untrained weights; the tag in the name is optional."""
    timm = import_library("timm", spec)
    if not timm.is_model(name):
        raise SourceError(
            f"timm has no model {name!r}{did_you_mean(name.partition('.')[0], timm.list_models())}"
        )

    def construct() -> nn.Module:
        model: nn.Module = timm.create_model(name, pretrained=False, dtype=torch.get_default_dtype())
        return model.eval()

    return Source(spec=spec, kind="timm", factory=construct, example_inputs=_image_inputs)


def _image_inputs(module: nn.Module, device: str, dtype: torch.dtype | None) -> ExampleInputs:
    config: Any = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", {})
    size = tuple(config.get("input_size") or (3, 224, 224))
    own = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
    return ExampleInputs((torch.zeros(BATCH, *size, device=device, dtype=dtype or own),))
