"""Programs for the compiler: with the weights that go into the code, or with memory instead of them."""

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

from fakexport._torch.fake_tensors import new_fake_mode, real_to_fake
from fakexport._torch.program_assembly import as_parameter
from fakexport._torch.real_execution import real_execution
from fakexport.archive import save
from fakexport.fake import is_fake
from fakexport.history import value_of
from fakexport.program import derived_program, facts_of, handed_on, tensor_identity, unbound_names

# As in `weights.mapped_file`: Python's `mmap` names it from 3.12 on.
_LINUX_NORESERVE = 0x4000

_Make = Callable[[torch.Tensor], torch.Tensor]


def with_stand_ins(program: ExportedProgram) -> ExportedProgram:
    """Return the program with contiguous real tensors instead of weights and constants, without memory.

    For a compiler that must not see values. Fake tensors would not work: Inductor distinguishes weights by
    their address, which is the same for all fakes, so that weights of the same shape would become one; and it
    reads the values of scalars. Tensors on an accelerator do take memory there.
    """
    return _with_tensors(program, _stand_in)


def with_own_weights(program: ExportedProgram) -> ExportedProgram:
    """Return the program with its own weights, each in memory of its own.

    The compiler writes the whole storage of a weight, once for each weight in it. Weights with a storage of
    their own are shared, not copied.
    """
    return _with_tensors(program, _alone)


def weightless_archive(program: ExportedProgram) -> bytes:
    """Return the program's archive without weights, with which a checkpoint in any layout can be bound later.

    Raises:
        ValueError: the archive format cannot express the program.
    """
    program = without_values(program)
    with tempfile.TemporaryDirectory(prefix="fakexport-") as folder:
        path = Path(folder, "program.pt2")
        # Where the program came from is not part of what it is: the bytes make the key of the cache.
        plain = handed_on(program, copy.copy(program), facts_of(program).of_weights())
        save(plain, path, root=folder)
        return path.read_bytes()


def without_values(program: ExportedProgram) -> ExportedProgram:
    """Return the program with fake weights; itself if it has no others."""
    if unbound_names(program):
        return program
    mode = new_fake_mode()
    return _with_tensors(program, lambda real: real_to_fake(mode, real, real.device), has_own_constants=True)


def held_tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return weights and constants by name; fake ones without values, real ones with known values."""
    named: dict[str, torch.Tensor] = {}
    for name, held in (*program.constants.items(), *program.state_dict.items()):
        if isinstance(held, torch.Tensor):
            named[name] = held
    return named


def _with_tensors(
    program: ExportedProgram, make: _Make, *, has_own_constants: bool = False
) -> ExportedProgram:
    """Return the program with other weights, and other constants unless it keeps its own, tied as before."""
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


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    with real_execution():
        if tensor.device.type != "cpu":
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        count = tensor.numel()
        flat = torch.frombuffer(_untouched_memory(max(count, 1) * tensor.itemsize), dtype=tensor.dtype)
        return flat[:count].view(tensor.shape)


def _untouched_memory(size: int) -> mmap.mmap:
    """Return any number of zeros that take no memory as long as they are not written to."""
    if sys.platform == "linux":
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _LINUX_NORESERVE)
    return mmap.mmap(-1, size)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    with real_execution():
        real = value_of(tensor).to(tensor.device) if is_fake(tensor) else tensor.detach()
        is_alone = real.untyped_storage().nbytes() == real.numel() * real.itemsize
        return real if is_alone or real.layout is not torch.strided else real.clone()
