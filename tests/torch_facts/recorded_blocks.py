"""One call of a module, recorded while torch traces it, and another one that is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from fakexport._torch.block_recordings import Recording
from fakexport._torch.module_calls import around_module_calls
from fakexport._torch.observed_tensors import SymbolicNumber, numbers_of, thunk_of

__all__ = ["Block", "exported", "recorded"]


class Block(nn.Module):
    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.up(x).relu() if self.function is None else self.function(self, x)


class Blocks(nn.Module):
    def __init__(self, function: Callable[..., Any] | None, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(function) for _ in range(count))

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


def exported(
    function: Callable[..., Any] | None,
    around: Callable[..., Any],
    *,
    count: int = 4,
    is_dynamic: bool = False,
) -> ExportedProgram:
    """The program of equal blocks, where `around(at, tracer, module, forward, args)` answers each of them."""
    torch.manual_seed(0)
    model = Blocks(function, count)
    at = {id(block): index for index, block in enumerate(model.blocks)}

    def answer(tracer: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        index = at.get(id(module))
        return forward(*args) if index is None else around(index, tracer, module, forward, args)

    shapes = ({0: Dim.AUTO},) if is_dynamic else None
    with around_module_calls(answer):
        return torch.export.export(model, (torch.ones(3, 4),), dynamic_shapes=shapes)


def reachable(tracer: Any, module: nn.Module, args: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """The tensors that a call can reach, and their symbolic sizes that the trace knows."""
    tensors = [*args, *module.parameters()]
    numbers = [
        number
        for tensor in tensors
        for number in numbers_of(tensor)
        if isinstance(number, SymbolicNumber) and thunk_of(tracer, number) is not None
    ]
    return tensors, numbers


def recorded(tracer: Any, module: Any, forward: Any, args: Any) -> tuple[Recording, Any]:
    """A recording of a call, and what the call returned."""
    recording = Recording(tracer, module, *reachable(tracer, module, args))
    with recording.running():
        result = forward(*args)
    return recording, result
