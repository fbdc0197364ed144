"""The programs of a source for sizes that are asked for, as few as there can be."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.capture import PartialProgram, export
from fakexport.devices import Topology, emulate
from fakexport.error import FakexportError, InvalidValue, type_and_line
from fakexport.memory import SizeRequest
from fakexport.planning.point import PlannedProgram
from fakexport.report import PlannedPoint, Progress
from fakexport.sources import SourceError, Workload, WorkloadName, parse_dtype, resolve

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
        subject: The source, as `resolve` takes it.
        topology, device_map, dtype, workload: What it is exported for.
        announce: Called before each export.
    """

    def __init__(
        self,
        subject: str | nn.Module | Callable[[], Any],
        topology: Topology,
        *,
        device_map: str | Mapping[str, str] | None,
        dtype: str | None,
        workload: WorkloadName,
        announce: Callable[[Progress], None],
    ) -> None:
        self._subject = subject
        self.topology = topology
        self._device_map = device_map
        self.workload: WorkloadName = workload
        self._announce = announce
        self.source = resolve(subject, workload=Workload(workload))
        self._dtype = None if dtype is None else parse_dtype(dtype)
        self.is_derived = self.source.kind == "transformers"
        """Whether the example inputs can be made at any size."""
        self.left_out: list[str] = []
        """What of the model its programs leave out, one sentence each."""
        self._programs: dict[tuple[int, int], PlannedProgram] = {}

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

    @property
    def placement(self) -> str | None:
        """The device map as the user wrote it."""
        return None if self._device_map is None else str(self._device_map)

    @property
    def any(self) -> PlannedProgram:
        """One of the programs."""
        return next(iter(self._programs.values()))

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
            self._announce(Progress(1, 1, self.topology.canonical, "trace"))
            self._programs[key] = self._export(Workload(self.workload, batch, context))
        return self._programs[key]

    def _refusal(self, error: Exception) -> str:
        said = f"{self.source.spec} does not export for {self.topology.spec}: {type_and_line(error)}"
        if self.workload != "forward":
            return f"--workload {self.workload}: {said}"
        return f"{said}; `fakexport check` with the same source and target and --dynamic auto says where"

    def _export(self, workload: Workload) -> PlannedProgram:
        source = resolve(self._subject, workload=workload) if self.is_derived else self.source
        with torch_logs_silenced(), emulate(self.topology), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                program = export(
                    source,
                    target=self.topology,
                    device_map=self._device_map,
                    dtype=self._dtype or source.dtype,
                    dynamic_shapes="auto",
                )
            except (InvalidValue, SourceError):
                raise
            except Exception as error:
                raise PlanError(self._refusal(error)) from error
            planned = PlannedProgram.of(program, self.topology)
        self.left_out += [str(one.message) for one in said if issubclass(one.category, PartialProgram)]
        return planned
