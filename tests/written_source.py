"""A program written as Python, read again, and held against the program bit for bit."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fakexport.exporting.capture.plain_forward import plain_forward
from fakexport.exporting.python_source import write_source
from fakexport.models.sources import ExampleInputs, Source

__all__ = ["assert_gives_the_same", "differences", "real_program", "written_module"]


def real_program(source: Source) -> tuple[ExportedProgram, ExampleInputs]:
    """The program of a model with real weights, as stock torch exports it, and the inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = source.factory()
        inputs = source.example_inputs(module, "cpu", None)
    with source.tracing(module, inputs), plain_forward(module, inputs.args, inputs.kwargs):
        program = torch.export.export(module, inputs.args, dict(inputs.kwargs), strict=False)
    return program, inputs


def written_module(program: ExportedProgram, folder: Path, **options: Any) -> nn.Module:
    """The module of the written file, with the weights of the program."""
    write_source(program, folder / "program.py")
    module: nn.Module = runpy.run_path(str(folder / "program.py"))["Program"](**options)
    module.load_state_dict(program.state_dict, strict=True)
    return module


def assert_gives_the_same(
    program: ExportedProgram, folder: Path, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> nn.Module:
    """Holds the outputs of two calls in a row, so that changed buffers count, and changed inputs as well."""
    module = written_module(program, folder)
    assert differences(program, module, args, kwargs) == []
    return module


def differences(
    program: ExportedProgram,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> list[str]:
    """In what the calls of a module differ from those of the program; nothing if in nothing."""
    runnable, found = program.module(), []
    for call in range(2):
        ours, theirs = (copy.deepcopy((tuple(args), dict(kwargs or {}))) for _ in range(2))
        with torch.no_grad():
            torch.manual_seed(call)
            expected = runnable(*theirs[0], **theirs[1])
            torch.manual_seed(call)
            given = module(*ours[0], **ours[1])
        if pytree.tree_structure((expected, theirs)) != pytree.tree_structure((given, ours)):
            found.append(f"call {call}: another structure")
            continue
        pairs = zip(pytree.tree_leaves((expected, theirs)), pytree.tree_leaves((given, ours)), strict=True)
        found += [f"call {call}: leaf {i}" for i, (a, b) in enumerate(pairs) if not _is_same(a, b)]
    return found


def _is_same(first: Any, second: Any) -> bool:
    if not isinstance(first, torch.Tensor):
        return type(first) is type(second) and bool(first == second)
    is_alike = (first.dtype, first.shape, first.stride()) == (second.dtype, second.shape, second.stride())
    return is_alike and torch.equal(_bytes(first), _bytes(second))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)
