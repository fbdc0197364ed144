"""Bind real weights to a program that has none."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.pytree import tree_map
from fakexport._torch.real_execution import real_execution
from fakexport.devices import exists_here
from fakexport.error import FakexportError, InvalidValue
from fakexport.fake import is_fake
from fakexport.history import value_of
from fakexport.program import (
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
from fakexport.weights.adapters import base_spec, merged_weights
from fakexport.weights.bound_weights import BoundWeights, read_weights
from fakexport.weights.checkpoint import Checkpoint
from fakexport.weights.expectation import ExpectedWeights
from fakexport.weights.verification import Verified
from fakexport.weights.weights_report import WeightsReport
from fakexport.weights.weights_warning import warn_of

LARGEST_CHECKED_BYTES = 2**30
"A mapped checkpoint larger than this is checked for NaN only with `check_finite=True`."


class BindError(FakexportError, ValueError):
    """A checkpoint does not fit the program; nothing was bound. The text is one line.

    Args:
        report: Everything that does not fit.
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
    """Return the program with the weights of a checkpoint: all of them, exactly, or none; see `archive.bind`.

    Raises:
        BindError, RetargetError, ValueError: as for `archive.bind`.
    Warns:
        WeightsWarning: as for `archive.bind`.
    """
    known, present = facts_of(program), devices_of_program(program)
    program = _on_devices(program, devices)
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
    """Return the weights that `bind` would bind, for other uses: all of them, exactly, or none.

    Args:
        expected, checkpoint: What the program needs, and what the checkpoint has.
        found: The result of `verified` for the two.
        like: Tensors by name whose strides the weights take, fakes as well.
        check_finite: As for `bind`.
    Returns:
        The tensors by name, on the CPU.
    Raises:
        BindError: as for `bind`.
    Warns:
        WeightsWarning: as for `bind`.
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
    """Refuse to convert weights to a dtype that the graph does not compute in.

    Raises:
        ValueError: the graph computes in other dtypes.
    """
    present = {w.dtype for w in expected.weights.values() if w.dtype.is_floating_point}
    if dtype is not None and present and dtype not in present:
        names = ", ".join(sorted(str(found).removeprefix("torch.") for found in present))
        asked = str(dtype).removeprefix("torch.")
        raise InvalidValue(
            f"the program's graph computes in {names}, not in {asked}: export it with that dtype"
        )


def _on_devices(program: ExportedProgram, devices: str | Mapping[str, str] | None) -> ExportedProgram:
    """Return the program on devices that are all on this machine."""
    move = move_to_here(devices, devices_of_program(program))
    return retarget(program, move.targets) if move.targets else program


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
    """Return a copy of each tensor that the program writes into, by the identity of the caller's.

    Nothing else is copied: memory is not doubled for what is only read.
    """
    shared = {id(tensor): tensor for name, tensor in tensors.items() if name in written}
    return {key: _copy(tensor) for key, tensor in shared.items() if isinstance(tensor, torch.Tensor)}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.detach().clone()
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(copied, requires_grad=tensor.requires_grad) if is_parameter else copied


def _zero_inputs(program: ExportedProgram) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the example inputs without fakes: `torch.export.load` would unpickle those by running code."""

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
    """Puts tensors on their devices, one tensor for all names that share one."""

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
            value = given if given is not None else value_of(old) if is_fake(old) else old
            self._constants[key] = value.to(old.device)
        return self._constants[key]


def move_to_here(devices: str | Mapping[str, str] | None, present: tuple[str, ...]) -> DeviceMove:
    """Return where `devices` moves the devices of programs that are to be bound.

    Raises:
        ValueError: a device that the programs do not use or that is unknown; one that is not on this machine.
    """
    move = DeviceMove.parse(devices, present)
    for device in present:
        target = str(move.of(device))
        if not exists_here(target):
            is_own = target == device
            hint = f"devices={{{device!r}: 'cpu'}} would bind it here" if is_own else "choose another"
            raise InvalidValue(f"the device {target} is not on this machine; {hint}")
    return move
