"""Capture a fake module as a program."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.guard_locations import guard_locations
from fakexport._torch.lazy_graph_module import lazy_graph_modules
from fakexport._torch.lifted_constants import fold_lifted_moves
from fakexport._torch.user_frames import name_user_frames
from fakexport.diagnostics import Span
from fakexport.fake import remember_value
from fakexport.program.source_span import is_user_code

from .constants import recover_constants
from .dynamic_dims import DynamicDims, as_torch_shapes
from .failure import CaptureFailure, GuardFact
from .plain_forward import bound_inputs, plain_forward
from .python_effects import PythonEffect, watch_forward
from .recovered import Recovered

__all__ = ["Captured", "capture"]


@dataclass(frozen=True)
class Captured:
    """A program, or why there is none.

    Args:
        program: The program, or None.
        failure: The failure, or None.
        recovered: What became of the program's constants, or None where there is no program.
        effects: What `forward` did besides computing; empty in strict mode, which does not run it.
    """

    program: ExportedProgram | None
    failure: CaptureFailure | None
    recovered: Recovered | None = None
    effects: tuple[PythonEffect, ...] = ()


def capture(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: DynamicDims | Any = None,
    strict: bool = False,
    tracing: AbstractContextManager[Any] | None = None,
) -> Captured:
    """Capture `module` as it stands, fake or real, on the devices where it stands.

    The caller has entered `devices.emulate` if a device is virtual. The program's outputs are plain
    tuples, lists and dicts. Weights stay what they are: fake weights stay fake. Constants get their values,
    as `recover_constants` says.

    Args:
        module: The module. Its `forward` is replaced while it is traced, and put back.
        args: Positional example inputs.
        kwargs: Keyword example inputs.
        dynamic: `DynamicDims`, or what `torch.export.export(dynamic_shapes=...)` takes, or None.
        strict: Trace with TorchDynamo instead of running the Python code.
        tracing: Entered around the trace: what the model's library wants patched meanwhile.
    Returns:
        A program or a failure. Whatever the model raises is a failure; nothing is raised for it.
    Raises:
        TypeError: `forward` does not take these inputs.
        ValueError: `dynamic` names what the inputs do not have.
    """
    kwargs = dict(kwargs or {})
    inputs = bound_inputs(module, args, kwargs)
    shapes: Any = as_torch_shapes(dynamic, inputs) if isinstance(dynamic, DynamicDims) else dynamic
    try:
        with (
            name_user_frames(is_user_code),
            tracing or nullcontext(),
            nullcontext(()) if strict else watch_forward(module) as effects,
            plain_forward(module, args, kwargs),
            # TorchDynamo reads a field that only generated code sets.
            nullcontext() if strict else lazy_graph_modules(),
        ):
            program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=strict)
        for name, value in fold_lifted_moves(program).items():
            remember_value(program.constants[name], value)
    except Exception as error:
        return Captured(None, CaptureFailure.of(error, guards=_guards(error)))
    return Captured(program, None, recover_constants(program), tuple(effects))


def _guards(error: BaseException) -> tuple[GuardFact, ...]:
    facts = []
    for expression, frames in guard_locations(error):
        place = next(((p, n, f) for p, n, f in reversed(frames) if is_user_code(p)), None)
        span = None if place is None else Span(place[0], place[1], function=place[2], origin="guard")
        facts.append(GuardFact(expression, span))
    return tuple(facts)
