"""A model in two columns: its program, and its own code in eager mode."""

from __future__ import annotations

from dataclasses import replace

from fakexport.error import FakexportError, InvalidValue
from fakexport.memory import BeyondTable, SizeRequest
from fakexport.planning.plan_source import PlanSource
from fakexport.planning.source_programs import PlanError, SourcePrograms
from fakexport.planning.source_runs import SourceRuns
from fakexport.report import PlannedPoint


class SourceColumns:
    """Answers with what the program of a source holds and, next to it, with what eager mode holds.

    Eager mode takes models that do not export, and sizes that the program does not accept: then it is alone.

    Args:
        given: The model, and what it is built for.
        has_aoti: Whether the program has a column of AOTInductor as well.
    """

    def __init__(self, given: PlanSource, *, has_aoti: bool = False) -> None:
        self.given = given
        self.runs = SourceRuns(given, None)
        self.programs = SourcePrograms(given, "forward", has_aoti=has_aoti)
        self.refusals: dict[str, None] = {}
        """Why there is no program at some of the sizes, one sentence each."""

    def completed(self, request: SizeRequest) -> SizeRequest:
        """Return the sizes with the defaults that the program has."""
        try:
            return self.programs.completed(request)
        except (PlanError, InvalidValue) as error:
            self._note(error)
            return request

    def at(self, request: SizeRequest) -> PlannedPoint:
        """Return the plan at the sizes that are asked for.

        Raises:
            ValueError, PlanError: eager mode does not run at these sizes.
        """
        eager = self.runs.at(replace(request, bounds={}))
        try:
            point = self.programs.at(request)
        except BeyondTable:
            raise
        except (PlanError, InvalidValue) as error:
            self._note(error)
            point = replace(eager, devices=())
        return replace(point, eager=eager.devices)

    def _note(self, error: FakexportError) -> None:
        self.refusals[f"the program: {error}"] = None
