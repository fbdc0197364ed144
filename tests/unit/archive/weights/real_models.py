"""Small real models of transformers, their checkpoints in the hub's layout, and their fake programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import fakexport as fe
from fakexport.models.sources import resolve
from tests.unit.models.sources.tiny_configs import TEXT, TINY

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

CONFIGS = {
    **{model_type: config for model_type, (config, _) in TINY.items()},
    "mixtral": {**TEXT, "num_local_experts": 4},
    "qwen3_moe": {**TEXT, **EXPERTS, "decoder_sparse_step": 1},
    "gpt_oss": {**TEXT, "num_local_experts": 4, "layer_types": ["sliding_attention", "full_attention"]},
}


@dataclass
class RealModel:
    """A model with weights that are all different, and its files.

    Args:
        spec: Source of the same model: `hf:.../config.json`.
        module: The real module, in eval mode.
        checkpoint: Folder that `save_pretrained` wrote.
        source: What `spec` resolves to.
    """

    spec: str
    module: nn.Module
    checkpoint: Path
    source: Any

    def program(self, target: str = "cpu", **options: Any) -> torch.export.ExportedProgram:
        """The weight-less program for a target."""
        verdict = fe.check(self.spec, target=[target], **options).verdicts[0]
        assert verdict.program is not None
        return verdict.program

    def eager(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return tensors_in(self.module(**inputs).to_tuple())


def real_model(model_type: str, folder: Path, **changes: Any) -> RealModel:
    (folder / "source").mkdir()
    config = folder / "source" / "config.json"
    config.write_text(json.dumps({"model_type": model_type, **CONFIGS[model_type], **changes}))
    spec = f"hf:{config}"
    source = resolve(spec)
    module = source.factory()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # Biases and norms start equal: a swap of two would not be seen.
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    module.save_pretrained(folder / "checkpoint")
    return RealModel(spec, module, folder / "checkpoint", source)


def tensors_in(outputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
