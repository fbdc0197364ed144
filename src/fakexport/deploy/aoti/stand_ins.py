"""Prepare programs for Inductor: with real weights to compile into the code, or with stand-ins for them."""

from __future__ import annotations

import copy
import mmap
import sys
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.emulation.fake_tensors import new_fake_mode, real_to_fake
from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.tracing.program_assembly import as_parameter
from fakexport.archive import save
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import constant_value
from fakexport.exporting.program import (
    copied_metadata,
    derived_program,
    facts_of,
    tensor_identity,
    unbound_names,
)

# As in `weights.mapped_file`. Python's `mmap` has a name for this flag since 3.12.
_LINUX_NORESERVE = 0x4000

_Make = Callable[[torch.Tensor], torch.Tensor]


def with_stand_ins(program: ExportedProgram) -> ExportedProgram:
    """Replace weights and constants with real, contiguous tensors that use no memory.

    This is for compilations that must not depend on values. Fake tensors cannot be used: Inductor
    distinguishes weights by address, and all fake tensors have the same address, so it would merge weights of
    the same shape. Inductor also reads the values of scalars. On an accelerator, the tensors do use memory.
    """
    return with_tensors(program, stand_in)


def with_own_weights(program: ExportedProgram) -> ExportedProgram:
    """Give each weight its own storage, because Inductor stores whole storages."""
    return with_tensors(program, _alone)


def weightless_archive(program: ExportedProgram) -> bytes:
    """Return the weight-less archive of a program. Checkpoints in any supported layout can be bound to it."""
    program = without_values(program)
    with tempfile.TemporaryDirectory(prefix="fakexport-") as folder:
        path = Path(folder, "program.pt2")
        # The bytes are part of the cache key, so they must not depend on the program's origin.
        plain = copied_metadata(program, copy.copy(program), facts_of(program).of_weights())
        save(plain, path, root=folder)
        return path.read_bytes()


def without_values(program: ExportedProgram) -> ExportedProgram:
    """Return the program with fake weights. If its weights are already fake, return it unchanged."""
    if unbound_names(program):
        return program
    mode = new_fake_mode()
    return with_tensors(program, lambda real: real_to_fake(mode, real, real.device), has_own_constants=True)


def held_tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return weights and constants by name: real tensors if they have a value, otherwise fake tensors."""
    named: dict[str, torch.Tensor] = {}
    for name, held in (*program.constants.items(), *program.state_dict.items()):
        if isinstance(held, torch.Tensor):
            named[name] = held
    return named


def with_tensors(
    program: ExportedProgram, make: _Make, *, has_own_constants: bool = False
) -> ExportedProgram:
    """Replace the weights and, unless `has_own_constants` is true, the constants. Tied weights stay tied."""
    made: dict[Hashable, torch.Tensor] = {}

    def once(tensor: torch.Tensor) -> torch.Tensor:
        key = tensor_identity(tensor)
        if key not in made:
            new = make(tensor)
            made[key] = _parameter(new, tensor) if isinstance(tensor, nn.Parameter) else new
        return made[key]

    constants = program.constants
    if not has_own_constants:
        constants = {
            name: once(held) if isinstance(held, torch.Tensor) else held for name, held in constants.items()
        }
    weights = {name: once(weight) for name, weight in program.state_dict.items()}
    return derived_program(program, state_dict=weights, constants=constants)


def _parameter(new: torch.Tensor, old: nn.Parameter) -> torch.Tensor:
    if is_fake(new):
        return as_parameter(new.requires_grad_(old.requires_grad))
    return nn.Parameter(new, old.requires_grad)


def stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """Return a real tensor of zeros that uses no memory; on an accelerator, it is empty and uses memory."""
    with real_execution():
        if tensor.device.type != "cpu":
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        count = tensor.numel()
        flat = torch.frombuffer(_untouched_memory(max(count, 1) * tensor.itemsize), dtype=tensor.dtype)
        return flat[:count].view(tensor.shape)


def _untouched_memory(size: int) -> mmap.mmap:
    """Return zero-filled memory that the system allocates only when it is written to."""
    if sys.platform == "linux":
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _LINUX_NORESERVE)
    return mmap.mmap(-1, size)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    with real_execution():
        real = constant_value(tensor).to(tensor.device) if is_fake(tensor) else tensor.detach()
        is_alone = real.untyped_storage().nbytes() == real.numel() * real.itemsize
        return real if is_alone or real.layout is not torch.strided else real.clone()
