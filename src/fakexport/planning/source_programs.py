"""Export a model for the requested sizes with as few programs as possible, and plan it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.emulation.devices import Topology, emulate
from fakexport.emulation.fake import DeviceMap
from fakexport.error import FakexportError, InvalidValue, type_and_line
from fakexport.exporting.capture import ModelRequest, Request, exported
from fakexport.models.sources import SourceError, Workload, WorkloadName
from fakexport.planning.memory import BeyondTable, SizeRequest
from fakexport.planning.planned_stages import PlannedStages
from fakexport.planning.point import PlannedProgram
from fakexport.report import PlannedPoint, PlannedStep, Progress

BATCH = 1
CONTEXT = 4096
_EXAMPLE_TOKENS = 16
_LEAST_DECODED = 3


class PlanError(FakexportError):
    """The model could not be exported, so there is nothing to plan."""


class SourcePrograms:
    """Export a source at few sizes, and plan other sizes with the same programs.

    If the example inputs of a model are derived, a batch of 1 needs its own program, because `torch.export`
    specializes a size of 1. If the model fixes a requested size, it is exported again at that size.

    `SourceRuns` and `SourceColumns` have the same methods.
    """

    def __init__(self, given: PlanSource, workload: WorkloadName, *, has_aoti: bool = False) -> None:
        self.given = given
        self._has_aoti = has_aoti
        self.workload: WorkloadName = workload
        self._request = given.read(Workload(workload))
        self.source = self._request.source
        self.is_derived = self.source.kind == "transformers"
        """Whether example inputs can be created at any size."""
        self.left_out: list[str] = []
        """Parts of the model that its programs omit, one sentence each."""
        self._programs: dict[tuple[int, int], PlannedProgram] = {}

    def left_out_at(self, request: SizeRequest) -> tuple[str, ...]:
        """Return one sentence for each part of the model that the plan omits."""
        return (*self.left_out, *self.program_at(request).left_out)

    def dtype(self, request: SizeRequest) -> str:
        """Return the dtype with the most bytes of weights."""
        return self.program_at(request).dtype

    def timeline(self, request: SizeRequest) -> Iterator[PlannedStep]:
        return self.program_at(request).timeline(request)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the plan, one sentence each."""
        degrees = self._request.degrees
        rank = (
            ()
            if degrees is None
            else (f"the plan is for rank 0 of {degrees.ranks}; no other rank needs more memory",)
        )
        return (*self.source.assumptions, *rank)

    def completed(self, request: SizeRequest) -> SizeRequest:
        """Return the sizes with a default batch and context, if the source has such dimensions."""
        if not self.is_derived or None not in (request.batch, request.context):
            return request
        batch, context = request.batch or BATCH, request.context or CONTEXT
        sizes = self.program(replace(request, batch=batch, context=context)).sizes
        if request.context is None:
            context = min(context, sizes.greatest("context") or context)
        return replace(
            request,
            batch=batch if sizes.has_role("batch") else request.batch,
            context=context if sizes.has_role("context") else request.context,
        )

    def at(self, request: SizeRequest) -> PlannedPoint:
        """Return the plan at the requested sizes.

        Raises:
            ValueError: The model does not accept the sizes.
            PlanError: The model does not export.
        """
        return self.program_at(request).at(request)

    def program_at(self, request: SizeRequest) -> PlannedProgram:
        """Return a program for these sizes. If the model fixes a size, export it at exactly these sizes."""
        planned = self.program(request)
        try:
            planned.sizes.chosen(request)
        except BeyondTable:
            raise
        except InvalidValue:
            if not self.is_derived or request.batch is None or request.dims:
                raise
            return self._exported(request.batch, request.context or _EXAMPLE_TOKENS)
        return planned

    def program(self, request: SizeRequest) -> PlannedProgram:
        """Return a program with a dynamic batch and context, if the model supports that."""
        is_decoding = self.workload == "decode"
        if is_decoding and request.context is not None and request.context < _LEAST_DECODED:
            raise InvalidValue(
                f"--context {request.context}: a decode step needs at least {_LEAST_DECODED} tokens, "
                "including the new one"
            )
        context = (request.context or CONTEXT) if is_decoding else _EXAMPLE_TOKENS
        return self._exported(1 if request.batch == 1 else 2, context)

    def _exported(self, batch: int, context: int) -> PlannedProgram:
        key = (batch, context) if self.is_derived else (0, 0)
        if key not in self._programs:
            self.given.note_trace()
            self._programs[key] = self._export(Workload(self.workload, batch, context))
        return self._programs[key]

    def _refusal(self, error: Exception) -> str:
        said = f"{self.source.spec} does not export for {self.given.topology.spec}: {type_and_line(error)}"
        if self.workload != "forward":
            return f"--workload {self.workload}: {said}"
        return f"{said}; run `fakexport check` with the same source and target and --dynamic auto for details"

    def _export(self, workload: Workload) -> PlannedProgram:
        given = self.given
        request = given.read(workload) if self.is_derived else self._request
        with torch_logs_silenced(), emulate(given.topology) as devices:
            try:
                made = exported(request, devices, device_map=given.device_map, dtype=given.dtype)
            except (InvalidValue, SourceError):
                raise
            except Exception as error:
                raise PlanError(self._refusal(error)) from error
            parallel = request.parallel
            if parallel is not None and parallel.stages > 1:
                planned: PlannedProgram = PlannedStages.cut(made.program, given.topology, parallel)
            else:
                planned = PlannedProgram.of(made.program, given.topology, has_aoti=self._has_aoti)
        self.left_out += made.left_out
        return planned


@dataclass(frozen=True)
class PlanSource:
    """A model, and the devices and options that it is built for.

    Args:
        request: The model, its dynamic dimensions, degrees of parallelism and assumed values. The plan is for
            rank 0. No other rank needs more memory.
        device_map, dtype: None for the placement and the dtype that the source defines.
        folder: Base of relative paths in the source, even after the model changes the working directory.
        announce: Called before each export or run.
    """

    request: Request
    topology: Topology
    device_map: DeviceMap | None
    dtype: torch.dtype | None
    folder: Path
    announce: Callable[[Progress], None]

    def read(self, workload: Workload) -> ModelRequest:
        """Read the source for a workload, with example inputs of the workload's sizes."""
        os.chdir(self.folder)
        return self.request.read(workload)

    def note_trace(self) -> None:
        self.announce(Progress(1, 1, self.topology.canonical, "trace"))
