"""What a runtime says about a program that it takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators.real_execution import real_execution
from fakexport.emulation.history import known_value
from fakexport.exporting.program import devices_of_program, retarget, tensor_identity, unbound_names
from fakexport.report import Fallback

from ..aoti.stand_ins import stand_in, with_tensors
from ..composed_program import Compositions, replaced_operators

_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Covered:
    """The answer of a runtime that takes a program.

    `is_certain` is whether all its operators were decided. The other fields are those of `RuntimeVerdict`.
    """

    rewrites: tuple[str, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    fallback_to: str = ""
    notes: tuple[str, ...] = ()
    is_certain: bool = True


def on_the_cpu(program: ExportedProgram, runtime: str) -> tuple[ExportedProgram, tuple[str, ...]]:
    """Move a program to the CPU. Return it with the rewrites that this takes."""
    others = [device for device in devices_of_program(program) if device not in ("cpu", "meta")]
    if not others:
        return program, ()
    moves = " ".join(f"--to {device}=cpu" for device in others)
    rewrite = f"{runtime} needs a program for the CPU: `fakexport retarget PROGRAM.pt2 {moves} -o CPU.pt2`"
    return retarget(program, dict.fromkeys(others, "cpu")), (rewrite,)


def has_large_weights(program: ExportedProgram) -> bool:
    """Return whether converters that copy the weights would need more than 256 MiB for them."""
    held = (*program.state_dict.values(), *program.constants.values())
    return sum(value.nbytes for value in held if isinstance(value, torch.Tensor)) > _MOST_BYTES


def with_example_values(program: ExportedProgram) -> ExportedProgram:
    """Give a program without weights random weights, or zeros that use no memory if the weights are large.

    The passes of converters depend on values: they remove additions of zeros, which real weights would not
    be, and compute what depends on constants only. So constants keep their values if these are known, and
    not large.
    """
    if not unbound_names(program):
        return program
    missing = stand_in if has_large_weights(program) else _random
    weights = {tensor_identity(weight) for weight in program.state_dict.values()}

    def value(tensor: torch.Tensor) -> torch.Tensor:
        is_constant = tensor_identity(tensor) not in weights and tensor.nbytes <= _MOST_BYTES
        known = known_value(tensor) if is_constant else None
        return missing(tensor) if known is None else known

    return with_tensors(program, value)


def _random(tensor: torch.Tensor) -> torch.Tensor:
    with real_execution():
        made = torch.zeros(tensor.shape, dtype=tensor.dtype)
        return made.normal_() if made.is_floating_point() else made


def replacements(program: ExportedProgram, compositions: Compositions) -> tuple[str, ...]:
    """Return a sentence for each operator that fakexport replaces for a runtime."""
    return tuple(
        f"{name} becomes a composition of other operators ({count} x)"
        for name, count in replaced_operators(program, compositions).items()
    )
