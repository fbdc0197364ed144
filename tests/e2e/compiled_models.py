"""Small models with inputs, as they are given to the compilers: an MLP, a ViT, a GPT-2."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.nn import functional

import fakexport as fe

__all__ = ["Case", "gpt2", "linear", "mlp", "save_bound", "vit"]


@dataclass(frozen=True)
class Case:
    """A model, its inputs by name, and which of their sizes may vary."""

    module: nn.Module
    inputs: dict[str, torch.Tensor]
    dynamic_shapes: dict[str, Any]

    def program(self) -> ExportedProgram:
        """Bound to the weights of the module."""
        program = fe.export(lambda: self.module, (), self.inputs, dynamic_shapes=self.dynamic_shapes)
        return fe.bind(program, dict(self.module.state_dict()))

    def eager(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors that the module gives, by name."""
        with torch.no_grad():
            outputs = self.module(**inputs)
        return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}


class Mlp(nn.Module):
    """Two inputs, one twice as long as the other; a buffer, small weights, and outputs of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 4)
        self.register_buffer("scale", torch.rand(4))

    def forward(self, x: torch.Tensor, twice: torch.Tensor) -> dict[str, Any]:
        y = self.fc2(functional.gelu(self.fc1(torch.cat([x, x]) + twice))) * self.scale
        return {"y": y, "rough": y.to(torch.bfloat16), "best": y.argmax(-1), "positive": y > 0, "count": 3}


def mlp() -> Case:
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", max=64)
    return Case(
        Mlp().eval(),
        {"x": torch.randn(3, 8), "twice": torch.randn(6, 8)},
        {"x": {0: batch}, "twice": {0: 2 * batch}},
    )


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.linear(x)}


def linear() -> Case:
    torch.manual_seed(0)
    return Case(Linear().eval(), {"x": torch.randn(3, 8)}, {"x": None})


def vit() -> Case:
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
    )
    images = {"pixel_values": torch.randn(2, 3, 16, 16)}
    return Case(ViTModel(config).eval(), images, {"pixel_values": {0: torch.export.Dim("batch", max=16)}})


def gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100, n_positions=32, use_cache=False)
    tokens = torch.randint(100, (2, 7))
    batch, length = torch.export.Dim("batch", max=16), torch.export.Dim("length", min=3, max=32)
    sizes = {0: batch, 1: length}
    return Case(
        GPT2LMHeadModel(config).eval(),
        {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)},
        {"input_ids": sizes, "attention_mask": sizes},
    )


def save_bound(case: Case, path: Path) -> None:
    """Writes the program as an archive with its weights."""
    fe.save(case.program(), path)
