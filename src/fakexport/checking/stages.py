"""Cut the program of a target into pipeline stages, and check each stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch.export import ExportedProgram

from fakexport.archive import Bundle
from fakexport.emulation.devices import Topology
from fakexport.exporting.program import source_span, summarise
from fakexport.exporting.stages import InseparableStages
from fakexport.models.parallel import Degrees
from fakexport.planning import diagnose_memory, memory_left, split_traced, summarise_stages
from fakexport.report import StagesSummary
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix, Label, with_columns


@dataclass(frozen=True)
class StagedProgram:
    """The pipeline stages of a program.

    `memory_finding` is FE503 or FE506 for the first stage that does not fit into the memory of its device.
    `memory_left` has the least number of bytes that a stage leaves, by device.
    """

    summary: StagesSummary
    memory_finding: Diagnostic | None
    memory_left: Mapping[str, int]

    @classmethod
    def of(
        cls, program: ExportedProgram, parallel: Degrees | None, topology: Topology
    ) -> StagedProgram | None:
        """Cut a program into the stages of `--parallel`. Return None if no stages were requested.

        Raises:
            StageError: as for `split`.
        """
        if parallel is None or parallel.stages == 1:
            return None
        stages = Bundle(split_traced(program, parallel.stages, at=parallel.starts))
        finding: Diagnostic | None = None
        left: dict[str, int] = {}
        for number, each in enumerate(stages.values()):
            summary = summarise(each)
            for device, size in memory_left(summary, topology).items():
                left[device] = min(size, left.get(device, size))
            found = diagnose_memory(each, summary, topology) if finding is None else None
            if found is not None:
                where = f"this is stage {number} of {len(stages)}, which has its own device"
                finding = replace(found, notes=(found.notes[0], where))
        return cls(summarise_stages(stages, topology), finding, left)


def diagnose_inseparable(error: InseparableStages) -> Diagnostic:
    """Return FE407, at the nodes that keep the stages together."""
    places = [(span, what) for node, what in error.nodes if (span := source_span(node)) is not None]
    return rule("FE407").diagnostic(
        labels=tuple(
            Label(with_columns(span), what, is_primary=not index) for index, (span, what) in enumerate(places)
        ),
        notes=(error.reason,),
        fix=Fix("choose where the stages begin with `--parallel pp=N,at=MODULE,...`, or change the model"),
        node=error.nodes[0][0].name,
    )
