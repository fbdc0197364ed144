"""Bind weights to programs, or to archives of programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import overload

import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.archive.weights import (
    BindError,
    Checkpoint,
    CheckpointSource,
    ModelSource,
    bound_program,
    check_dtype,
    move_to_here,
    open_checkpoint,
    warn_of,
    warn_of_hooks,
)
from fakexport.error import InvalidValue
from fakexport.exporting.program import devices_of_program, facts_of

from .bundle import Bundle
from .loading import load
from .manifest import ALONE
from .method_readings import MethodReading, MethodRequirements, readings, report_of
from .sharing import unify


@overload
def bind(
    program: Bundle,
    checkpoint: CheckpointSource,
    *,
    devices: str | Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    source: ModelSource | None = None,
    check_finite: bool | None = None,
) -> Bundle: ...
@overload
def bind(
    program: ExportedProgram | str | os.PathLike[str],
    checkpoint: CheckpointSource,
    *,
    devices: str | Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    source: ModelSource | None = None,
    check_finite: bool | None = None,
) -> ExportedProgram: ...
@one_at_a_time
def bind(
    program: Bundle | ExportedProgram | str | os.PathLike[str],
    checkpoint: CheckpointSource,
    *,
    devices: str | Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    source: ModelSource | None = None,
    check_finite: bool | None = None,
) -> Bundle | ExportedProgram:
    """Return the program with all weights of a checkpoint bound to it, or raise an error.

    Names, shapes and dtypes must match, and tied weights stay one tensor. Weights on the CPU are
    memory-mapped from their file and are read on first use, so binding takes no memory for them. Weights that
    must be converted, merged, or moved to another device are copied. Constants with known values become real
    tensors.

    Args:
        program: A weight-less program from `export` or `load`, the path of its archive, or a bundle. All
            methods of a bundle get their weights from the same checkpoint, and shared weights become one
            tensor. A program taken from a bundle keeps the prefix that the bundle defined for its weights,
            even after `retarget`, or after it has been saved on its own. `program` is not changed.
        checkpoint: A file, a folder or tensors by name, as for `open_checkpoint`. The bound program shares
            the tensors of a mapping, but gets a copy of each tensor that it writes into.
        devices: Needed if the program's devices are not on this machine: the new device for each old device,
            such as `{"cuda:0": "cpu"}`, or one new device for all. Applies to all methods of a bundle.
            `retarget` moves the program first.
        dtype: Convert floating-point weights to this dtype, which must be the program's dtype.
        constants: Values for constants without a value (FE601, FE602, FE603): CPU tensors by name.
        source: As for `verify_weights`.
        check_finite: Whether to check all weights for NaN and infinity. Default: only if the weights take at
            most 1 GiB.

    Returns:
        A new program that can run, or a new bundle. Its `module()` checks each call against the guards of the
        trace. Its example inputs are zeros, because the original inputs are fake or not in the archive.

    Raises:
        ArchiveError: The archive is rejected, or it is a bundle. Open bundles with `load_bundle`.
        BindError: The checkpoint does not match the program; `report` lists all mismatches with likely
            causes.
        CheckpointError: The checkpoint is missing or rejected.
        RetargetError: An operator of the program cannot run on the new devices.
        ValueError: A device is not on this machine, no weight of the program has the dtype, a name in
            `constants` is unknown, or the methods of a bundle would get different data for a shared weight.

    Warns:
        WeightsWarning: There are unexpected keys (FE704), NaN or infinity (FE706), hooks of the model that do
            not run, or other settings in the `config.json` next to the checkpoint than in the exported one.

    Reports:
        FE701, FE702, FE703, FE705, FE707 in `BindError.report`.

    Example:
        >>> from torch import nn
        >>> from fakexport.exporting.capture import export
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
        >>> bound = bind(program, {"weight": torch.ones(2, 4), "bias": torch.zeros(2)})
        >>> bound.module()(torch.ones(3, 4))[0].tolist()
        [4.0, 4.0]
    """
    if isinstance(program, Bundle):
        bundle = program
    else:
        bundle = Bundle({ALONE: program if isinstance(program, ExportedProgram) else load(program)})
    name = "the program" if bundle.is_alone else "the bundle"
    opened = open_checkpoint(checkpoint)
    opened = _read_once(opened) if len(bundle) > 1 else opened
    wants = {method: MethodRequirements.of(bundle, method, source) for method in bundle}
    for want in wants.values():
        check_dtype(want.expected, dtype)
    _check_constants(constants or {}, wants.values(), name)
    found = readings(wants, opened, given=constants, is_converting=dtype is not None)
    report = report_of(found, opened, name=name)
    if not report.is_bindable:
        raise BindError(report)
    warn_of_hooks(dict.fromkeys(hook for each in bundle.values() for hook in facts_of(each).load_hooks))
    maps = _device_maps(bundle, devices)
    programs = {}
    for method, reading in found.items():
        source_name = name if bundle.is_alone else f"the method {method}"
        programs[method] = _bound(bundle[method], reading, source_name, maps[method], check_finite, source)
    stages = [facts_of(each).stage for each in bundle.values()]
    if all(stage is None or stage.stages <= len(bundle) for stage in stages):  # Else others use the entries.
        warn_of(report.checkpoint, (finding for finding in report.findings if finding.code == "FE704"))
    if program is not bundle:
        return programs[ALONE]
    # A method without a prefix must not inherit the prefix that its program had in a different archive.
    prefixes = {method: bundle.prefixes.get(method, ("", "")) for method in bundle}
    bound = Bundle(programs, prefixes=prefixes, shared=bundle.shared)
    unify(programs, bound.shared)
    return bound


def _bound(
    program: ExportedProgram,
    reading: MethodReading,
    name: str,
    devices: Mapping[str, str] | None,
    check_finite: bool | None,
    source: ModelSource | None,
) -> ExportedProgram:
    """Bind one program. The caller warns about the unexpected keys of all programs together."""
    report = reading.verified.report
    own = tuple(finding for finding in report.findings if finding.code != "FE704")
    found = replace(reading.verified, report=replace(report, source=name, findings=own))
    expected = reading.wants.expected
    spec = source if isinstance(source, str) else None
    return bound_program(
        program, expected, reading.seen, found, devices=devices, check_finite=check_finite, source=spec
    )


def _check_constants(
    given: Mapping[str, torch.Tensor], wants: Iterable[MethodRequirements], programs: str
) -> None:
    known = list(dict.fromkeys(name for want in wants for name in want.expected.constants))
    for name in given:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InvalidValue(
                f"{name!r} is not a constant that needs a value; {programs} needs values for: {listed}"
            )


def _device_maps(
    bundle: Bundle, asked: str | Mapping[str, str] | None
) -> dict[str, Mapping[str, str] | None]:
    """For each method, map its devices to the devices on which it will run."""
    present = {method: devices_of_program(program) for method, program in bundle.items()}
    every = tuple(dict.fromkeys(device for devices in present.values() for device in devices))
    targets = move_to_here(asked, every).targets
    return {
        method: {device: targets[device] for device in devices if device in targets} or None
        for method, devices in present.items()
    }


def _read_once(checkpoint: Checkpoint) -> Checkpoint:
    """Make `read` return the same tensor on each call, so that methods share its memory."""
    tensors: dict[str, torch.Tensor] = {}

    def read(name: str) -> torch.Tensor:
        if name not in tensors:
            tensors[name] = checkpoint.read(name)
        return tensors[name]

    return replace(checkpoint, read=read)
