"""Small models for the tests of this package, and how they are exported for virtual devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fakexport.emulation.devices import emulate


def export_for(
    topology: str, make: Callable[[], tuple[nn.Module, tuple[Any, ...]]], dynamic_shapes: Any = None
) -> ExportedProgram:
    """Makes the model and its inputs as fakes on the devices of the topology, and exports it."""
    with emulate(topology), FakeTensorMode(shape_env=ShapeEnv()):
        model, inputs = make()
        return torch.export.export(model.eval(), inputs, dynamic_shapes=dynamic_shapes)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(x).relu())


class TwoDevices(nn.Module):
    """Moves the hidden state from `cuda:0` to `cuda:1` under autocast, and the result to `cpu`."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16, device="cuda:0")
        self.fc2 = nn.Linear(16, 4, device="cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.fc1(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hidden = self.fc2(hidden.to("cuda:1"))
        return hidden.to("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.proj(x).relu()


class Blocks(nn.Module):
    """Four equal blocks, of which the listed ones are followed by an activation."""

    def __init__(self, activated: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.activated = activated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number in self.activated:
                x = x.sigmoid()
        return x


class Branching(nn.Module):
    """Control flow: two branches, one with three operators and one with a single one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.one_way, self.other_way, (x,))

    def one_way(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.sin()) + 1

    def other_way(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos()


class ManyKinds(nn.Module):
    """Tied weights, both kinds of buffers, both kinds of constants, a literal input, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.fc.weight
        self.register_buffer("steps", torch.zeros(4))
        self.register_buffer("scale", torch.ones(4), persistent=False)
        self.shift = torch.arange(4.0)

    def forward(self, x: torch.Tensor, times: int = 3) -> dict[str, Any]:
        self.steps.add_(1)
        hidden = self.tied(self.fc(x)) * self.scale * times + self.shift + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"hidden": hidden, "extra": (x.shape[0], hidden.nonzero())}


BATCH = {"x": {0: Dim("batch", min=2, max=64)}}


def export_many_kinds() -> ExportedProgram:
    return torch.export.export(ManyKinds(), (torch.randn(5, 4), 3), dynamic_shapes={**BATCH, "times": None})
