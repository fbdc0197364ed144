"""Choose among programs that divide the sizes of a call among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.export import ExportedProgram

from fakexport.exporting.interface import is_lifted
from fakexport.exporting.program import facts_of, written_state
from fakexport.files.documents import SizeRange

from .artifact import Artifact, DeployError
from .loaded_program import LoadedProgram
from .signature import Dimension, InputMismatchError, Signature

Sizes = tuple[SizeRange, ...]
T = TypeVar("T")


def chosen(programs: Sequence[tuple[Sizes, T]], inputs: Mapping[str, torch.Tensor]) -> T:
    """Return the program for the sizes of a call.

    If an input is missing or has too few dimensions, return the first program, which rejects the call.

    Raises:
        InputMismatchError: no program is for these sizes.
    """
    places = {(each.input, each.dim) for sizes, _ in programs for each in sizes}
    shapes = {name: inputs[name].shape for name, _ in places if name in inputs}
    if any(name not in shapes or dim >= len(shapes[name]) for name, dim in places):
        return programs[0][1]
    for sizes, program in programs:
        if all(int(shapes[each.input][each.dim]) in each for each in sizes):
            return program
    for name, dim in sorted(places):
        size, every = int(shapes[name][dim]), [each for sizes, _ in programs for each in sizes]
        own = dict.fromkeys(each for each in every if (each.input, each.dim) == (name, dim))
        if not any(size in each for each in own):
            known = " and ".join(each.bounds for each in own)
            raise InputMismatchError(
                f"`{name}` has size {size} in dimension {dim}, but the programs are for {known}"
            )
    raise InputMismatchError(f"no program is for {', '.join(f'{n}[{d}]={shapes[n][d]}' for n, d in places)}")


def check_same_state(programs: Mapping[str, ExportedProgram], name: str, *, what: str) -> None:
    """Raise a `DeployError` unless all these programs write and read the same tensor, such as `the cache`."""
    (method, first), *others = programs.items()
    for other_method, other in others:
        if _held(first, name) is not _held(other, name):
            raise DeployError(
                f"{method} and {other_method} each have their own copy of {what} {name}: bind them in "
                "one bundle"
            )


def written_by_any(programs: Mapping[str, ExportedProgram]) -> dict[str, dict[str, ExportedProgram]]:
    """Return each tensor that a program writes, with the programs that have it under the same name."""
    found: dict[str, dict[str, ExportedProgram]] = {}
    for name in sorted(set().union(*map(written_state, programs.values()))):
        found[name] = {method: each for method, each in programs.items() if _held(each, name) is not None}
        if is_lifted(name) and len(found[name]) > 1:
            raise DeployError(
                f"{' and '.join(found[name])} cannot share {name}, a tensor that `forward` writes: make it a "
                "buffer of a module"
            )
    return found


def _held(program: ExportedProgram, name: str) -> object:
    return program.state_dict.get(name, program.constants.get(name))


class DividedSizes:
    """Opened programs with the sizes of each, which do not overlap. A call runs the program for its sizes."""

    def __init__(self, programs: Sequence[tuple[Sizes, Artifact]]) -> None:
        self._programs = programs

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of a call. A size that depends on the program is not checked."""
        return common_signature([program.signature for _, program in self._programs])

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the program for the sizes of the inputs."""
        return chosen(self._programs, inputs)(inputs)


class LoadedRanges(DividedSizes):
    """Bound programs by method, which divide the sizes of a call among them and share what they write."""

    def __init__(self, programs: Mapping[str, ExportedProgram], *, is_compiled: bool = False) -> None:
        for name, holders in written_by_any(programs).items():
            check_same_state(holders, name, what="the state")
        loaded = [LoadedProgram(program, is_compiled=is_compiled) for program in programs.values()]
        self._first = loaded[0]
        super().__init__([(facts_of(each.program).sizes, each) for each in loaded])

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Run the program for the sizes of the inputs. Arguments and errors are those of `run`."""
        return super().__call__(self._first.named(args, kwargs))


def common_signature(signatures: Sequence[Signature]) -> Signature:
    """Return the signature of several programs. A size that differs between them is not checked."""
    first = signatures[0]
    inputs = [
        replace(
            same[0],
            shape=tuple(
                sizes[0] if len(set(sizes)) == 1 else Dimension(is_checked=False)
                for sizes in zip(*(each.shape for each in same), strict=True)
            ),
        )
        for same in zip(*(each.inputs for each in signatures), strict=True)
    ]
    return replace(first, inputs=tuple(inputs), conditions=())
