"""A model of plain torch with a plan of torch's own styles, and what a process of it computes."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

HEADS, HEAD = 4, 8
WIDTH = HEADS * HEAD


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 50), nn.Linear(50, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (part(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def plan() -> dict[str, Any]:
    return {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        **{f"layers.*.{name}": ColwiseParallel() for name in ("q", "k", "v", "up")},
        "layers.*.o": RowwiseParallel(),
        "layers.*.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }


def factory() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Language().eval(), (torch.zeros(2, 7, dtype=torch.long),)


def both_ways(folder: Path, rank: int, ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what the program of a rank returns for each input, and torch's own sharded model."""
    from safetensors.torch import load_file

    from fakexport.archive import bind, load

    program = bind(load(folder / f"rank{rank}.pt2", trust=True), folder / "model.safetensors").module()
    model = factory()[0]
    model.load_state_dict(load_file(folder / "model.safetensors"))
    parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan())
    return [(program(ids), model(ids)) for ids in torch.load(folder / "ids.pt")]
