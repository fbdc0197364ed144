"""Plan programs that divide the sizes of a call among them."""

from __future__ import annotations

from dataclasses import dataclass

from fakexport.error import InvalidValue
from fakexport.exporting.guards import InputSizes
from fakexport.exporting.program import facts_of
from fakexport.planning.memory import SizeRequest
from fakexport.planning.point import PlannedProgram
from fakexport.planning.search import greatest
from fakexport.report import Greatest


@dataclass(frozen=True)
class PlannedRanges:
    """One or several programs; each size is planned with the program that runs it."""

    programs: tuple[PlannedProgram, ...]

    def program_at(self, request: SizeRequest) -> PlannedProgram:
        """Return the program for these sizes, and for open sizes the one for the largest sizes."""
        first: InvalidValue | None = None
        for planned in reversed(self.programs):
            try:
                chosen = planned.sizes.chosen(request)
            except InvalidValue as error:
                first = first or error
                continue
            sizes = InputSizes.of(planned.program)
            own = facts_of(planned.program).sizes
            if all(chosen.valued(sizes.size(each.place)) in each for each in own):
                return planned
        ranges = " or ".join(str(own) for own in self._sizes())
        raise first or InvalidValue(f"no program is for these sizes: the programs are for {ranges}")

    def greatest(self, role: str, request: SizeRequest) -> Greatest:
        """Return the largest batch or context that fits, as `search.greatest`, over all programs."""
        dynamic = [planned for planned in self.programs if planned.sizes.is_dynamic(role)]
        found = [greatest(planned, role, request) for planned in dynamic or self.programs]
        return max(found, key=lambda each: each.size or 0)

    def _sizes(self) -> list[str]:
        return [", ".join(map(str, facts_of(planned.program).sizes)) for planned in self.programs]
