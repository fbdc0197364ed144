"""A model that is planned, and its programs for the sizes that are asked for, as few as possible."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.capture import PartialProgram, export, parse_assumed
from fakexport.devices import Topology, emulate
from fakexport.error import FakexportError, InvalidValue, type_and_line
from fakexport.memory import BeyondTable, SizeRequest
from fakexport.parallel import Degrees, parallel_source
from fakexport.planning.point import PlannedProgram
from fakexport.report import PlannedPoint, PlannedStep, Progress
from fakexport.sources import Source, SourceError, Workload, WorkloadName, resolve

_BATCH = 1
_CONTEXT = 4096
_EXAMPLE_TOKENS = 16
_LEAST_DECODED = 3


class PlanError(FakexportError):
    """The model could not be exported, so nothing can be planned."""


class SourcePrograms:
    """Exports a source at few sizes, and answers for others from the programs.

    If the example inputs of a model are derived, a batch of 1 is a program of its own, since `torch.export`
    fixes a size of 1; and where the model fixes a size that is asked for, it is exported again at that size.

    Args:
        given: The model, and what it is exported for.
        workload: The call that is exported.
        has_aoti: Whether to plan the buffers of AOTInductor too.
    """

    def __init__(self, given: PlanSource, workload: WorkloadName, *, has_aoti: bool = False) -> None:
        self.given = given
        self._has_aoti = has_aoti
        self.workload: WorkloadName = workload
        self.source = given.resolved(Workload(workload))
        self.is_derived = self.source.kind == "transformers"
        """Whether the example inputs can be made at any size."""
        self.left_out: list[str] = []
        """What of the model its programs leave out, one sentence each."""
        self._programs: dict[tuple[int, int], PlannedProgram] = {}

    def left_out_at(self, request: SizeRequest) -> tuple[str, ...]:
        """Return what of the model the programs so far leave out, one sentence each."""
        return (*self.left_out, *self.program_at(request).left_out)

    def dtype(self, request: SizeRequest) -> str:
        """Return the dtype of most of the weights."""
        return self.program_at(request).dtype

    def timeline(self, request: SizeRequest) -> Iterator[PlannedStep]:
        """Yield what each device holds, node by node."""
        return self.program_at(request).timeline(request)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was taken for granted, one sentence each."""
        return (*self.source.assumptions, *self.given.assumptions)

    def completed(self, request: SizeRequest) -> SizeRequest:
        """Return the sizes with defaults for the batch and the context, where the source has them."""
        if not self.is_derived or None not in (request.batch, request.context):
            return request
        batch, context = request.batch or _BATCH, request.context or _CONTEXT
        sizes = self.program(replace(request, batch=batch, context=context)).sizes
        if request.context is None:
            context = min(context, sizes.greatest("context") or context)
        return replace(
            request,
            batch=batch if sizes.has_role("batch") else request.batch,
            context=context if sizes.has_role("context") else request.context,
        )

    def at(self, request: SizeRequest) -> PlannedPoint:
        """Return the plan at the sizes that are asked for.

        Raises:
            ValueError: the model does not take them. One line.
            PlanError: it does not export.
        """
        return self.program_at(request).at(request)

    def program_at(self, request: SizeRequest) -> PlannedProgram:
        """Return a program that accepts these sizes: one at these sizes alone, if the model fixes them.

        Raises:
            ValueError, PlanError: as for `at`.
        """
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
        """Return a program in which the batch and the context vary, if the model lets them."""
        is_decoding = self.workload == "decode"
        if is_decoding and request.context is not None and request.context < _LEAST_DECODED:
            raise InvalidValue(
                f"--context {request.context}: a decode step needs {_LEAST_DECODED} tokens or more, the new "
                "one included"
            )
        context = (request.context or _CONTEXT) if is_decoding else _EXAMPLE_TOKENS
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
        return f"{said}; `fakexport check` with the same source and target and --dynamic auto says where"

    def _export(self, workload: Workload) -> PlannedProgram:
        source = self.given.resolved(workload) if self.is_derived else self.source
        with (
            torch_logs_silenced(),
            emulate(self.given.topology),
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            try:
                program = export(
                    source,
                    target=self.given.topology,
                    device_map=self.given.device_map,
                    dtype=self.given.dtype or source.dtype,
                    dynamic_shapes="auto",
                    assume=self.given.assume,
                )
            except (InvalidValue, SourceError):
                raise
            except Exception as error:
                raise PlanError(self._refusal(error)) from error
            planned = PlannedProgram.of(program, self.given.topology, has_aoti=self._has_aoti)
        self.left_out += [str(one.message) for one in said if issubclass(one.category, PartialProgram)]
        return planned


@dataclass(frozen=True)
class PlanSource:
    """A model, and what it is built for.

    Args:
        subject: The model, as `resolve` takes it.
        topology: The devices.
        device_map: Where its modules are; None: where the source puts them.
        dtype: The dtype that it is cast to; None: that of the source.
        folder: What paths in the subject are relative to, even after the model has left it.
        announce: Called before each export or run.
        parallel: Degrees of parallelism: planned is rank 0, of which no other rank has more; None: all of it.
        assume: Answers of what data decide, as `check` takes them.
    """

    subject: str | nn.Module | Callable[[], Any]
    topology: Topology
    device_map: str | Mapping[str, str] | None
    dtype: torch.dtype | None
    folder: Path
    announce: Callable[[Progress], None]
    parallel: Degrees | None = None
    assume: tuple[str, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the plan takes for granted, one sentence each."""
        assumed = tuple(each.sentence for each in parse_assumed(self.assume))
        if self.parallel is None:
            return assumed
        return (f"planned is rank 0 of {self.parallel.ranks}; no other rank needs more", *assumed)

    @property
    def placement(self) -> str | None:
        """The device map as the user wrote it."""
        return None if self.device_map is None else str(self.device_map)

    def resolved(self, workload: Workload) -> Source:
        """Return the source for a workload: its example inputs have the sizes of the workload."""
        os.chdir(self.folder)
        return parallel_source(resolve(self.subject, workload=workload), self.parallel)

    def note_trace(self) -> None:
        """Announce that the model is exported or run on fakes."""
        self.announce(Progress(1, 1, self.topology.canonical, "trace"))
