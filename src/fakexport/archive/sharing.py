"""Determine which weights several programs share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators.real_execution import real_execution
from fakexport.archive.weights import are_equal
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import known_value
from fakexport.error import InvalidValue
from fakexport.exporting.interface import is_lifted
from fakexport.exporting.program import facts_of, names_by_tensor, tensor_identity, written_state

from .shared_names import NamedTensors, Pair, SharedWeight, name_in_checkpoint, shared_names


def shared_weights(
    programs: Mapping[str, ExportedProgram],
    prefixes: Mapping[str, tuple[str, str]],
    known: Iterable[SharedWeight] = (),
) -> tuple[SharedWeight, ...]:
    """Return the weights that share memory, have the same name in the checkpoint, or are listed in `known`.

    Programs of different ranks share nothing. Buffers that checkpoints omit, and other tensors of the model
    that a program writes, are shared too, because one program may write what another reads. Raises ValueError
    if weights that would be shared differ.
    """
    written = frozenset().union(*map(written_state, programs.values()))
    methods = {}
    for method, program in programs.items():
        keys = {name: tensor_identity(tensor) for name, tensor in _weights(program, written).items()}
        methods[method] = NamedTensors(facts_of(program).parallel, keys)
    shared = shared_names(methods, prefixes, known)
    for weight in shared:
        for first, second in pairwise(weight):
            _check_same(first, second, programs, prefixes)
    return shared


def unify(programs: Mapping[str, ExportedProgram], shared: Iterable[SharedWeight]) -> None:
    """For each shared weight that is real, put the same tensor under all of its names."""
    tensors = {method: _tensors(program) for method, program in programs.items()}
    names_of = {
        (method, names[0]): names for method, found in tensors.items() for names in names_by_tensor(found)
    }
    for first, *others in shared:
        tensor = tensors[first[0]][first[1]]
        if is_fake(tensor):  # Each program has its own fake mode, so fake tensors cannot be shared.
            continue
        for method, name in others:
            program = programs[method]
            for same in names_of[method, name]:
                holder = program.state_dict if same in program.state_dict else program.constants
                holder[same] = tensor


def _weights(program: ExportedProgram, written: frozenset[str]) -> dict[str, torch.Tensor]:
    """Return parameters, buffers, and attributes of modules that a program writes, by name."""
    own = {*program.state_dict, *program.graph_signature.non_persistent_buffers}
    own |= {name for name in written if not is_lifted(name)}
    return {name: tensor for name, tensor in _tensors(program).items() if name in own}


def _tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return parameters, buffers, and tensor constants."""
    constants = {name: c for name, c in program.constants.items() if isinstance(c, torch.Tensor)}
    return {**program.state_dict, **constants}


def _tensor(program: ExportedProgram, name: str) -> torch.Tensor:
    tensor: torch.Tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
    return tensor


def _check_same(
    first: Pair,
    second: Pair,
    programs: Mapping[str, ExportedProgram],
    prefixes: Mapping[str, tuple[str, str]],
) -> None:
    (method_a, name_a), (method_b, name_b) = first, second
    a, b = _tensor(programs[method_a], name_a), _tensor(programs[method_b], name_b)
    if method_a == method_b:
        raise InvalidValue(f"{name_a} and {name_b} of {method_a} would become one weight: {_ADVICE}")
    name = name_in_checkpoint(name_a, prefixes.get(method_a))
    if _kind(a) != _kind(b):
        raise InvalidValue(f"{name} is {_kind(a)} in {method_a} but {_kind(b)} in {method_b}: {_ADVICE}")
    is_weight = name_a in programs[method_a].state_dict or name_b in programs[method_b].state_dict
    if is_weight and (is_fake(a) or is_fake(b)):
        return  # The initial value of a fake weight is not used, so do not compute it.
    if (of_a := known_value(a)) is None or (of_b := known_value(b)) is None:
        return
    with real_execution():
        if not are_equal(of_a.detach(), of_b.detach()):
            raise InvalidValue(f"{name} has different data in {method_a} and in {method_b}: {_ADVICE}")


_ADVICE = "if these are two weights, use prefixes to give them different names in the checkpoint"


def _kind(tensor: torch.Tensor) -> str:
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)}{strides} on {tensor.device}"
