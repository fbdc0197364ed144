"""Bind weights to programs, which may still be in their archive."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import overload

import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.error import InvalidValue
from fakexport.program import devices_of_program, facts_of
from fakexport.weights import (
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

from .bundle import Bundle
from .loading import load
from .manifest import ALONE
from .method_readings import MethodReading, MethodWants, readings, report_of
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
    """Return the program with the weights of a checkpoint: all of them, exactly, or none.

    Names, shapes and dtypes must fit; tied weights stay one tensor. Weights on the CPU stay mapped to
    their file until they are used, so that binding takes no memory for them; those that must be converted or
    merged, or that go to another device, are copied. Constants that have values become real.

    Args:
        program: A weight-less program, from `export` or `load`, or the path of its archive; or a bundle,
            whose methods all get their weights from the one checkpoint, those that they share as one tensor.
            A program that comes out of a bundle reads its part of the checkpoint, also after `retarget`, and
            out of an archive that it was saved to alone. Not changed.
        checkpoint: A file, a folder or tensors by name, as for `open_checkpoint`. Tensors of a mapping are
            shared with the bound program, except those that it writes into: of these it has copies.
        devices: Device to device, for a program whose devices are not on this machine: `{"cuda:0": "cpu"}`,
            or one device for all; for all methods of a bundle. The program is retargeted first, as by
            `retarget`.
        dtype: Convert floating-point weights to the program's dtype, which it must be.
        constants: Values of constants that have none (FE601, FE602, FE603), by name; on the CPU.
        source: As for `verify_weights`.
        check_finite: Check all weights for NaN and infinity. Default: if they are at most 1 GiB.
    Returns:
        A new program, which runs, and whose `module()` checks each call against the conditions of the trace;
        of a bundle a new bundle. Its example inputs are zeros, instead of the fake ones, or of those that an
        archive does not have.
    Raises:
        ArchiveError: the archive is refused, or is a bundle: `load_bundle` opens it.
        BindError: the checkpoint does not fit; `report` lists everything, with causes.
        CheckpointError: the checkpoint is missing or refused.
        RetargetError: an operator of the program cannot run on the devices of the map.
        ValueError: a device that is not on this machine, a dtype or a constant that the program does not
            have; or the methods of a bundle would get different data for a shared weight.
    Warns:
        WeightsWarning: unexpected keys (FE704); NaN or infinity (FE706); hooks of the model that do not run.
    Reports:
        FE701, FE702, FE703, FE705, FE707 in `BindError.report`.

    Example:
        >>> from torch import nn
        >>> from fakexport.capture import export
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
    wants = {method: MethodWants.of(bundle, method, source) for method in bundle}
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
    warn_of(report.checkpoint, (finding for finding in report.findings if finding.code == "FE704"))
    if program is not bundle:
        return programs[ALONE]
    # What a method has no prefix for is not what its program had in another archive.
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
    """Return one bound program; the caller warns of unexpected keys for all programs."""
    report = reading.verified.report
    own = tuple(finding for finding in report.findings if finding.code != "FE704")
    found = replace(reading.verified, report=replace(report, source=name, findings=own))
    expected = reading.wants.expected
    spec = source if isinstance(source, str) else None
    return bound_program(
        program, expected, reading.seen, found, devices=devices, check_finite=check_finite, source=spec
    )


def _check_constants(given: Mapping[str, torch.Tensor], wants: Iterable[MethodWants], programs: str) -> None:
    known = list(dict.fromkeys(name for want in wants for name in want.expected.constants))
    for name in given:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InvalidValue(f"{name!r} is not a constant without a value; those of {programs}: {listed}")


def _device_maps(
    bundle: Bundle, asked: str | Mapping[str, str] | None
) -> dict[str, Mapping[str, str] | None]:
    """Return the new device of each device of each method."""
    present = {method: devices_of_program(program) for method, program in bundle.items()}
    every = tuple(dict.fromkeys(device for devices in present.values() for device in devices))
    targets = move_to_here(asked, every).targets
    return {
        method: {device: targets[device] for device in devices if device in targets} or None
        for method, devices in present.items()
    }


def _read_once(checkpoint: Checkpoint) -> Checkpoint:
    """Return a reader that returns the same tensor each time, so that two methods share its memory."""
    tensors: dict[str, torch.Tensor] = {}

    def read(name: str) -> torch.Tensor:
        if name not in tensors:
            tensors[name] = checkpoint.read(name)
        return tensors[name]

    return replace(checkpoint, read=read)
