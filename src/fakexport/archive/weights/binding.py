"""Bind real weights to a weight-less program."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.pytree import tree_map
from fakexport.archive.weights.adapters import base_spec, merged_weights
from fakexport.archive.weights.bound_weights import BoundWeights, read_weights
from fakexport.archive.weights.checkpoint import Checkpoint
from fakexport.archive.weights.expectation import ExpectedWeights
from fakexport.archive.weights.verification import Verified
from fakexport.archive.weights.weights_report import WeightsReport, warn_of
from fakexport.emulation.devices import exists_here
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import constant_value
from fakexport.error import FakexportError, InvalidValue
from fakexport.exporting.program import (
    DeviceMove,
    ProgramFacts,
    derived_program,
    devices_of_program,
    example_inputs_of,
    facts_of,
    give_stand_in_inputs,
    retarget,
    tensor_identity,
    written_state,
)

LARGEST_CHECKED_BYTES = 2**30
"""Larger memory-mapped checkpoints are only checked for NaN and infinity with `check_finite=True`."""


class BindError(FakexportError, ValueError):
    """A checkpoint does not fit the program, so nothing was bound. The message is a single line.

    Args:
        report: All mismatches.
    """

    def __init__(self, report: WeightsReport) -> None:
        fault = f"{report.summary}: {report.faults}"
        super().__init__(f"{report.checkpoint} does not fit {report.source}: {fault}")
        self.report = report


def bound_program(
    program: ExportedProgram,
    expected: ExpectedWeights,
    checkpoint: Checkpoint,
    found: Verified,
    *,
    devices: str | Mapping[str, str] | None = None,
    check_finite: bool | None = None,
    source: str | None = None,
) -> ExportedProgram:
    """Bind all weights of a checkpoint to a program; `archive.bind` documents errors and warnings."""
    known, present = facts_of(program), devices_of_program(program)
    if (move := move_to_here(devices, present)).targets:
        program = retarget(program, move.targets)
    like = {**program.constants, **program.state_dict}
    weights = fitting_weights(expected, checkpoint, found, like, check_finite=check_finite)
    is_merging = known.adapter is None or known.adapter.mode == "merged"
    for adapter in checkpoint.adapters if is_merging else ():
        spec = source or base_spec(known.source, checkpoint)
        weights = replace(weights, tensors=merged_weights(weights.tensors, adapter, spec))
    return _bound(program, weights, known.bound(present, devices))


def fitting_weights(
    expected: ExpectedWeights,
    checkpoint: Checkpoint,
    found: Verified,
    like: Mapping[str, torch.Tensor],
    *,
    check_finite: bool | None = None,
) -> BoundWeights:
    """Return all weights that `bind` would bind, as CPU tensors by name, with its errors and warnings.

    Args:
        found: The result of `verified` for the expected weights and the checkpoint.
        like: Real or fake tensors by name. Each weight gets the strides of the tensor with the same name.
        check_finite: As for `bind`.
    """
    if not found.report.is_bindable:
        raise BindError(found.report)
    is_small = checkpoint.folder is None or checkpoint.nbytes <= LARGEST_CHECKED_BYTES
    is_checking = is_small if check_finite is None else check_finite
    weights = read_weights(checkpoint, found.match, expected, like, is_checking_finite=is_checking)
    seen = {(finding.code, finding.names) for finding in weights.findings}
    before = (finding for finding in found.report.findings if (finding.code, finding.names) not in seen)
    report = replace(found.report, findings=(*weights.findings, *before))
    if not report.is_bindable:
        raise BindError(report)
    warn_of(report.checkpoint, report.findings)
    return weights


def check_dtype(expected: ExpectedWeights, dtype: torch.dtype | None) -> None:
    """Reject a dtype for `bind` that no weight of the program has."""
    present = {w.dtype for w in expected.weights.values() if w.dtype.is_floating_point}
    if dtype is not None and present and dtype not in present:
        names = ", ".join(sorted(str(found).removeprefix("torch.") for found in present))
        asked = str(dtype).removeprefix("torch.")
        raise InvalidValue(
            f"the program's graph computes in {names}, not in {asked}: export again in the requested dtype"
        )


def _bound(program: ExportedProgram, weights: BoundWeights, facts: ProgramFacts) -> ExportedProgram:
    placed = _Placed()
    parameters = set(program.graph_signature.parameters)
    state: dict[str, torch.Tensor] = {}
    for name, old in program.state_dict.items():
        is_parameter = name in parameters or isinstance(old, nn.Parameter)
        state[name] = placed.weight(weights.tensors[name], old, is_parameter=is_parameter)
    constants = {
        name: placed.constant(old, weights.tensors.get(name)) for name, old in program.constants.items()
    }
    own = _own_copies({**state, **constants}, written_state(program))
    bound = derived_program(
        program,
        state_dict={name: own.get(id(tensor), tensor) for name, tensor in state.items()},
        constants={name: own.get(id(value), value) for name, value in constants.items()},
        example_inputs=_zero_inputs(program),
        facts=facts,
    )
    give_stand_in_inputs(bound)
    return bound


def _own_copies(tensors: Mapping[str, Any], written: frozenset[str]) -> dict[int, torch.Tensor]:
    """Return copies of the tensors that the program writes into, by the `id` of the original tensor.

    Weights that are only read are not copied, so they take no additional memory.
    """
    shared = {id(tensor): tensor for name, tensor in tensors.items() if name in written}
    return {key: _copy(tensor) for key, tensor in shared.items() if isinstance(tensor, torch.Tensor)}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.detach().clone()
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(copied, requires_grad=tensor.requires_grad) if is_parameter else copied


def _zero_inputs(program: ExportedProgram) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the example inputs, with zeros instead of fake tensors, which cannot be pickled safely."""

    def real(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not is_fake(value):
            return value
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        ).zero_()

    inputs = example_inputs_of(program)
    if inputs is None:
        return None
    with real_execution():
        args, kwargs = tree_map(real, inputs)
    return args, kwargs


class _Placed:
    """Move tensors to their devices. Names that shared a tensor before still share one."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, str, bool], torch.Tensor] = {}
        self._constants: dict[Hashable, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []

    def weight(self, real: torch.Tensor, old: torch.Tensor, *, is_parameter: bool) -> torch.Tensor:
        key = id(real), str(old.device), is_parameter
        if key not in self._weights:
            self._kept.append(real)
            placed = real.to(old.device)
            self._weights[key] = (
                nn.Parameter(placed, requires_grad=old.requires_grad) if is_parameter else placed
            )
        return self._weights[key]

    def constant(self, old: Any, given: torch.Tensor | None) -> Any:
        if not isinstance(old, torch.Tensor):
            return old
        key = tensor_identity(old)
        if key not in self._constants:
            value = given if given is not None else constant_value(old) if is_fake(old) else old
            self._constants[key] = value.to(old.device)
        return self._constants[key]


def move_to_here(devices: str | Mapping[str, str] | None, present: tuple[str, ...]) -> DeviceMove:
    """Return the device move for programs that will be bound on this machine."""
    move = DeviceMove.parse(devices, present)
    for device in present:
        target = str(move.of(device))
        if not exists_here(target):
            is_own = target == device
            hint = (
                f"use devices={{{device!r}: 'cpu'}} to bind it to the CPU"
                if is_own
                else "choose a different one"
            )
            raise InvalidValue(f"the device {target} is not on this machine; {hint}")
    return move
