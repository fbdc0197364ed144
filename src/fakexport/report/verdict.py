"""What a check is doing, and what it found: verdicts, differences between targets, diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from fakexport.diagnostics import Diagnostic, escaped
from fakexport.report.quantity import plural

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from fakexport.capture import Recovered
    from fakexport.program import Fingerprint, ModuleSummary, ProgramDifference, ProgramSummary, Transfer
    from fakexport.report.rank_summary import RankSummary
    from fakexport.report.saved_programs import SavedPrograms

Stage = Literal["build", "capture", "analyse"]

# Warnings after which a program is not that of the model which was asked for.
_NOT_THE_MODEL = frozenset({"FE104", "FE105"})


@dataclass(frozen=True)
class TargetSpec:
    """One row of the verdict table, as asked for.

    Args:
        name: Unique within a report: the topology as written, with the device map where two rows share it.
        topology: The normalized topology, such as `8xH100-80GB`.
        device_map: As written: a device, `balanced`, `fc1=cpu,fc2=cuda:0`, a JSON file; None for none.
        dtype: Floating dtype asked for, such as `bfloat16`, or None for the model's own.
        assumptions: What was assumed where the target did not say, one sentence each.
    """

    name: str
    topology: str
    device_map: str | None = None
    dtype: str | None = None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timings:
    """Wall time of each step in seconds, and memory of the process in bytes.

    Args:
        build_s: Constructing the fake module and its inputs.
        capture_s: `torch.export` and what fakexport does to its program.
        analyse_s: Facts and diagnostics.
        peak_rss_bytes: Highest resident memory of the target's process.
        growth_bytes: `peak_rss_bytes` less that before the model was built.
    """

    build_s: float
    capture_s: float
    analyse_s: float
    peak_rss_bytes: int
    growth_bytes: int


@dataclass(frozen=True)
class Verdict:
    """Whether the model exports for one target, with the facts of its program.

    Args:
        target: What was asked.
        is_exportable: A program was captured for this target.
        failed_stage: Where it failed, or None.
        summary: Facts of the program, or None where there is none.
        transfers: Moves between devices, in execution order.
        timings: Wall time and memory.
        notes: Observations, and after a failure the assumptions behind further problems; one sentence each.
        recovered: The program's constants with and without a value; None without a program.
        memory_left: Bytes of each device next to the weights placed on it, for cache, inputs and activations;
            negative where they do not fit. Without the host and devices whose memory is not known.
        placement: Device by module path, as it was used; with the program, for saving.
        modules: The tree of the model's modules, for pages; None where there is no program.
        ranks: The programs of all ranks, if the model is parallel; `program` is that of rank 0.
        fingerprints: Fingerprints of the programs by rank, if a lock was asked for.
        saved: The programs by rank; like the placement they are part of no rendering.
    """

    target: TargetSpec
    is_exportable: bool
    failed_stage: Stage | None
    summary: ProgramSummary | None
    transfers: tuple[Transfer, ...]
    timings: Timings
    notes: tuple[str, ...] = ()
    recovered: Recovered | None = None
    memory_left: Mapping[str, int] = field(default_factory=dict)
    placement: Mapping[str, str] = field(default_factory=dict, repr=False)
    modules: ModuleSummary | None = field(default=None, repr=False, compare=False)
    ranks: RankSummary | None = None
    fingerprints: Mapping[int, Fingerprint] = field(default_factory=dict, repr=False, compare=False)
    saved: SavedPrograms | None = field(default=None, repr=False, compare=False)

    @property
    def program(self) -> ExportedProgram | None:
        """The program, as `load` returns it; None if there is none.

        Raises:
            ValueError: the program cannot be saved, so the process that exported it could not return it.
            ArchiveError: it has operators that this process has not registered.
        """
        return None if self.saved is None else self.saved.program

    @property
    def rank_programs(self) -> Mapping[int, ExportedProgram]:
        """The programs of the ranks that were traced, if the model is parallel. Raises as `program` does."""
        return {} if self.saved is None or self.ranks is None else self.saved.programs


@dataclass(frozen=True)
class TargetDifference:
    """How the program of one target differs from that of another: from `first` to `second`, by name."""

    first: str
    second: str
    difference: ProgramDifference


@dataclass(frozen=True)
class Report:
    """The result of `fakexport check`.

    Args:
        source: The source spec, or the name of the module's class.
        verdicts: One per target, in the order asked.
        differences: The first exportable target against each other one.
        diagnostics: Findings of all targets, folded; each names its targets.
        versions: Package name -> version, for what the result depends on (python, torch, fakexport, ...).
    """

    source: str
    verdicts: tuple[Verdict, ...]
    differences: tuple[TargetDifference, ...]
    diagnostics: tuple[Diagnostic, ...]
    versions: dict[str, str]

    def __str__(self) -> str:
        """Return the rendered report, as `fakexport check` prints it."""
        from .text import render_report  # It reads this class.

        return render_report(self).rstrip()

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from .page.check_page import check_document
        from .page.rendering import render_in_notebook

        return render_in_notebook(check_document(self))

    def __repr__(self) -> str:
        """Return one line that a test runner shows whole: the summary, and the first error with its place."""
        from .text import summary_line

        errors = [found for found in self.diagnostics if found.severity == "error"]
        first = f": {_headline(errors[0])}" if errors else ""
        return f"<Report of {escaped(self.source)}: {summary_line(self)}{first}>"

    @property
    def is_clean(self) -> bool:
        """Every target exports all of the model (no FE104, no FE105) and no diagnostic is an error."""
        return all(v.is_exportable for v in self.verdicts) and not any(
            d.severity == "error" or d.code in _NOT_THE_MODEL for d in self.diagnostics
        )


def _headline(error: Diagnostic) -> str:
    """Return `FE201 branch on tensor data at model.py:7`."""
    where = "" if error.primary is None else f" at {error.primary.span.path}:{error.primary.span.line}"
    return escaped(f"{error.code} {error.message}{where}")


@dataclass(frozen=True)
class ProjectReport:
    """What `fakexport check` found in the sources of `[tool.fakexport]`.

    Args:
        reports: One per source that could be checked, in their order.
        refused: Source -> why it could not be checked, one line each.
    """

    reports: tuple[Report, ...]
    refused: Mapping[str, str]

    @property
    def exit_code(self) -> int:
        """The worst of all sources: 0 clean, 1 findings, 2 not checked."""
        if self.refused:
            return 2
        return 0 if all(report.is_clean for report in self.reports) else 1


def project_summary_line(report: ProjectReport) -> str:
    """Return `3 sources: 1 clean, 1 with findings, 1 not checked`, without a line end."""
    clean = sum(part.is_clean for part in report.reports)
    counts = {
        "clean": clean,
        "with findings": len(report.reports) - clean,
        "not checked": len(report.refused),
    }
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{plural(sum(counts.values()), 'source')}: {said}"


Step = Literal["build", "trace", "explore", "analyse", "compare"]


@dataclass
class BlockCount:
    """How far a trace is; changes while it runs.

    Args:
        done: Number of the model's repeated blocks that are traced.
        total: How many there are; 0 for a model without such blocks.
    """

    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class Progress:
    """The step that a check is about to take. Given to `on_progress` before the step begins.

    Args:
        target_index: Number of the target, from 1: `2` of 3. The last one for `compare`.
        target_count: Number of targets in this check.
        target: Name of the target, as in `TargetSpec.name`; the last one for `compare`, which is about all.
        step: `build` makes the fake module and its inputs, `trace` captures the program, `explore` looks for
            further problems of a model that could not be captured, `analyse` reads facts and findings off the
            program, `compare` finds what differs between the targets.
        finding: For `explore`, what stopped the capture, on one line; "" for the other steps.
        blocks: For `trace`, counts the model's blocks while they are traced: `blocks.done` of `blocks.total`.
            None for the other steps, and with `strict=True`.
    Raises:
        ValueError: an index outside 1 to `target_count`, or an unknown step.
    """

    target_index: int
    target_count: int
    target: str
    step: Step
    finding: str = ""
    blocks: BlockCount | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.target_index <= self.target_count:
            raise ValueError(f"target_index counts from 1 to {self.target_count}, got {self.target_index}")
        if self.step not in get_args(Step):
            raise ValueError(f"step must be one of {', '.join(get_args(Step))}; got {self.step!r}")
