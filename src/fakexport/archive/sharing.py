"""Which weights of several programs are one weight."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise

import torch
from torch.export import ExportedProgram

from fakexport._torch.real_execution import real_execution
from fakexport.fake import is_fake
from fakexport.program.tensor_identity import tensor_identity
from fakexport.weights.finite import are_equal

from .payload import names_by_tensor

__all__ = ["SharedWeight", "name_in_checkpoint", "shared_weights", "unify"]

Pair = tuple[str, str]
SharedWeight = tuple[Pair, ...]
"""The methods that have a weight, each with its first name there."""


def name_in_checkpoint(name: str, prefix: tuple[str, str] | None) -> str:
    """What a checkpoint calls a weight of a program; `Bundle` says what the prefix is."""
    if prefix is None or not name.startswith(prefix[1]):
        return name
    return prefix[0] + name.removeprefix(prefix[1])


def shared_weights(
    programs: Mapping[str, ExportedProgram],
    prefixes: Mapping[str, tuple[str, str]],
    known: Iterable[SharedWeight] = (),
) -> tuple[SharedWeight, ...]:
    """The weights that several programs have, told by memory, by name in the checkpoint, or known.

    Constants count if a program writes into them: then they are state, which the others must see.

    Raises:
        ValueError: two weights that would be one are not the same, or are two in one program.
    """
    known_as = {pair: index for index, weight in enumerate(known) for pair in weight}
    counted = _counted(programs, prefixes)
    union = _Union()
    for method, tensors in counted.items():
        for names in names_by_tensor(tensors):
            pair = method, names[0]
            union.join(pair, ("memory", tensor_identity(tensors[names[0]])))
            for name in names:
                union.join(pair, ("name", name_in_checkpoint(name, prefixes.get(method))))
                if (method, name) in known_as:
                    union.join(pair, ("known", known_as[method, name]))
    shared = tuple(tuple(pairs) for pairs in union.groups() if len(pairs) > 1)
    for weight in shared:
        for first, second in pairwise(weight):
            _check_same(first, second, counted, prefixes)
    return shared


def unify(programs: Mapping[str, ExportedProgram], shared: Iterable[SharedWeight]) -> None:
    """Makes one tensor of each shared weight that is real, with all its names.

    Args:
        programs: They are changed, and must be nobody else's.
        shared: Of these programs, as `shared_weights` tells.
    """
    tensors = {method: _tensors(program) for method, program in programs.items()}
    names_of = {
        (method, names[0]): names for method, found in tensors.items() for names in names_by_tensor(found)
    }
    for first, *others in shared:
        tensor = tensors[first[0]][first[1]]
        if is_fake(tensor):  # Each program has fakes of its own mode.
            continue
        for method, name in others:
            program = programs[method]
            for same in names_of[method, name]:
                holder = program.state_dict if same in program.state_dict else program.constants
                holder[same] = tensor


class _Union:
    """Pairs that have a key in common, directly or through others, are in one group."""

    def __init__(self) -> None:
        self._parents: dict[Hashable, Hashable] = {}
        self._pairs: dict[Pair, None] = {}

    def join(self, pair: Pair, key: Hashable) -> None:
        self._pairs[pair] = None
        self._parents[self._root(key)] = self._root(("pair", pair))

    def groups(self) -> list[list[Pair]]:
        """In the order in which the pairs came."""
        found: dict[Hashable, list[Pair]] = {}
        for pair in self._pairs:
            found.setdefault(self._root(("pair", pair)), []).append(pair)
        return list(found.values())

    def _root(self, item: Hashable) -> Hashable:
        path = []
        while (parent := self._parents.setdefault(item, item)) != item:
            path.append(item)
            item = parent
        self._parents.update(dict.fromkeys(path, item))
        return item


def _counted(
    programs: Mapping[str, ExportedProgram], prefixes: Mapping[str, tuple[str, str]]
) -> dict[str, dict[str, torch.Tensor]]:
    """By method: its weights, and those of its constants that a program writes into."""
    all_of = {method: _tensors(program) for method, program in programs.items()}
    written = [
        (method, name)
        for method, program in programs.items()
        for name in program.graph_signature.buffers_to_mutate.values()
        if name in program.constants and name in all_of[method]
    ]
    memories = {tensor_identity(all_of[method][name]) for method, name in written}
    in_checkpoint = {name_in_checkpoint(name, prefixes.get(method)) for method, name in written}
    return {
        method: {
            name: tensor
            for name, tensor in all_of[method].items()
            if name in program.state_dict
            or tensor_identity(tensor) in memories
            or name_in_checkpoint(name, prefixes.get(method)) in in_checkpoint
        }
        for method, program in programs.items()
    }


def _tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    constants = {name: c for name, c in program.constants.items() if isinstance(c, torch.Tensor)}
    return {**program.state_dict, **constants}


def _check_same(
    first: Pair,
    second: Pair,
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    prefixes: Mapping[str, tuple[str, str]],
) -> None:
    (method_a, name_a), (method_b, name_b) = first, second
    a, b = tensors[method_a][name_a], tensors[method_b][name_b]
    if method_a == method_b:
        raise ValueError(f"{name_a} and {name_b} of {method_a} would be one weight: {_ADVICE}")
    name = name_in_checkpoint(name_a, prefixes.get(method_a))
    if _kind(a) != _kind(b):
        raise ValueError(f"{name} is {_kind(a)} in {method_a} and {_kind(b)} in {method_b}: {_ADVICE}")
    if is_fake(a) or is_fake(b):
        return
    with real_execution():
        if not are_equal(a.detach(), b.detach()):
            raise ValueError(f"{name} has other data in {method_a} than in {method_b}: {_ADVICE}")


_ADVICE = "if these are two weights, tell their names in the checkpoint apart by prefixes"


def _kind(tensor: torch.Tensor) -> str:
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)}{strides} on {tensor.device}"
