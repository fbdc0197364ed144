"""Progress and result of a check: verdicts, differences between targets, diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from fakexport.files import escaped
from fakexport.report.quantity import plural
from fakexport.rules.diagnostics import Diagnostic

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from fakexport.exporting.capture import Recovered
    from fakexport.exporting.interface import ProgramDifference, Transfer
    from fakexport.exporting.program import Fingerprint, ModuleSummary, ProgramSummary
    from fakexport.report.rank_summary import RankSummary
    from fakexport.report.runtime_verdict import RuntimeVerdict
    from fakexport.report.saved_programs import SavedPrograms
    from fakexport.report.stage_summary import StagesSummary

Stage = Literal["build", "capture", "analyse"]

# Warnings that mean that the program covers only part of the requested model.
_NOT_THE_MODEL = frozenset({"FE104", "FE105"})


@dataclass(frozen=True)
class TargetSpec:
    """A requested target: one row of the verdict table.

    Args:
        name: Name that is unique in a report: the topology as the user wrote it, with the device map if two
            rows have the same topology.
        topology: The normalized topology, such as `8xH100-80GB`.
        device_map: The device map as the user wrote it: a device, `balanced`, `fc1=cpu,fc2=cuda:0`, a JSON
            file; None without a device map.
        dtype: Requested floating point dtype, such as `bfloat16`; None to keep the model's dtype.
        assumptions: Assumptions about what the target does not specify, one sentence each.
        sizes: The sizes of the row's program, such as `input_ids.0=2..32`, if several programs divide the
            sizes among them; else None.
    """

    name: str
    topology: str
    device_map: str | None = None
    dtype: str | None = None
    assumptions: tuple[str, ...] = ()
    sizes: str | None = None


@dataclass(frozen=True)
class Timings:
    """Wall time of each step in seconds, and memory of the process in bytes.

    Args:
        build_s: Constructing the fake module and its inputs.
        capture_s: `torch.export`, and fakexport's changes to the program.
        analyse_s: Collecting facts about the program, and diagnostics.
        peak_rss_bytes: Highest resident memory of the target's process.
        growth_bytes: `peak_rss_bytes` minus the memory before the model was built.
    """

    build_s: float
    capture_s: float
    analyse_s: float
    peak_rss_bytes: int
    growth_bytes: int


@dataclass(frozen=True)
class Verdict:
    """Whether the model exports for one target, with a description of the exported program.

    Args:
        target: The requested target.
        is_exportable: Whether a program was captured.
        failed_stage: The stage that failed, or None.
        summary: Summary of the program; None without a program.
        transfers: Moves between devices, in execution order.
        timings: Wall time and memory.
        notes: Observations, one sentence each. After a failure, also the assumptions that were made to find
            further problems.
        recovered: The program's constants, with and without values; None without a program.
        memory_left: Device -> bytes that remain for cache, inputs and activations after loading the weights;
            negative if the weights do not fit. The host, and devices whose memory is unknown, are omitted.
        placement: Module path -> device of the module. Saved with the program.
        modules: The tree of the model's modules, for HTML pages; None without a program.
        ranks: Summary of all ranks, if the model is parallel. `program` is then the program of rank 0.
        stages: Summary of the pipeline stages, if they were requested. `program` is the whole program.
        runtimes: The answers of the requested runtimes for `program`.
        fingerprints: Rank -> fingerprint of its program; empty unless requested for a lock file.
        saved: The programs by rank. Rendered reports contain neither the programs nor `placement`.
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
    stages: StagesSummary | None = None
    runtimes: tuple[RuntimeVerdict, ...] = ()
    fingerprints: Mapping[int, Fingerprint] = field(default_factory=dict, repr=False, compare=False)
    saved: SavedPrograms | None = field(default=None, repr=False, compare=False)

    @property
    def program(self) -> ExportedProgram | None:
        """The program, as `load` returns it; None if there is none.

        Raises:
            ValueError: the program cannot be saved, so the process that exported it could not return it.
            ArchiveError: the program has operators that are not registered in this process.
        """
        return None if self.saved is None else self.saved.program

    @property
    def rank_programs(self) -> Mapping[int, ExportedProgram]:
        """The programs of the traced ranks, if the model is parallel. Raises the same errors as `program`."""
        return {} if self.saved is None or self.ranks is None else self.saved.programs


@dataclass(frozen=True)
class TargetDifference:
    """Differences between the programs of two targets.

    Args:
        first, second: Names of the targets; `fakexport.lock` stands for a program in the lock file.
        difference: Changes from the program of `first` (`a`) to the program of `second` (`b`).
    """

    first: str
    second: str
    difference: ProgramDifference


@dataclass(frozen=True)
class Report:
    """The result of `fakexport check`.

    Args:
        source: The source spec, or the name of the module's class.
        verdicts: One verdict per target, in the requested order.
        differences: Differences from the first exported target to each other exported target.
        diagnostics: Findings of all targets; identical ones are merged, with the names of their targets.
        versions: Package name -> version, for all packages that affect the result (python, torch, ...).
    """

    source: str
    verdicts: tuple[Verdict, ...]
    differences: tuple[TargetDifference, ...]
    diagnostics: tuple[Diagnostic, ...]
    versions: dict[str, str]

    def __str__(self) -> str:
        """Return the rendered report, as `fakexport check` prints it."""
        from .text import render_report  # That module imports this class.

        return render_report(self).rstrip()

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        from .page.check_page import check_document
        from .page.rendering import render_in_notebook

        return render_in_notebook(check_document(self))

    def __repr__(self) -> str:
        """Return a line short enough for test runners: the summary, and the first error with its line."""
        from .text import summary_line

        errors = [found for found in self.diagnostics if found.severity == "error"]
        first = f": {_headline(errors[0])}" if errors else ""
        return f"<Report of {escaped(self.source)}: {summary_line(self)}{first}>"

    @property
    def is_clean(self) -> bool:
        """Whether every target exports the whole model (no FE104, no FE105) and no diagnostic is an error."""
        return all(v.is_exportable for v in self.verdicts) and not any(
            d.severity == "error" or d.code in _NOT_THE_MODEL for d in self.diagnostics
        )


def _headline(error: Diagnostic) -> str:
    """Return `FE201 branch on tensor data at model.py:7`."""
    where = "" if error.primary is None else f" at {error.primary.span.path}:{error.primary.span.line}"
    return escaped(f"{error.code} {error.message}{where}")


@dataclass(frozen=True)
class ProjectReport:
    """Results of `fakexport check` for the sources of `[tool.fakexport]`.

    Args:
        reports: One report per source that could be checked, in order.
        refused: Source -> one line that says why it could not be checked.
    """

    reports: tuple[Report, ...]
    refused: Mapping[str, str]

    @property
    def is_clean(self) -> bool:
        """Whether every source was checked, and every report is clean."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """The highest exit code of all sources: 0 clean, 1 findings, 2 not checked."""
        if self.refused:
            return 2
        return 0 if all(report.is_clean for report in self.reports) else 1


def project_summary_line(report: ProjectReport) -> str:
    """Return `3 sources: 1 clean, 1 with findings, 1 not checked`, without a newline."""
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
    """Progress of a trace; updated while it runs.

    Args:
        done: Number of traced repeated blocks of the model.
        total: Number of repeated blocks; 0 for a model without such blocks.
        module: Path of the module that is being traced; "" for the whole model.
    """

    done: int = 0
    total: int = 0
    module: str = ""

    def __str__(self) -> str:
        """Return `57 of 126 blocks, model.layers.57.mlp`, without what is unknown."""
        count = f"{self.done} of {self.total} blocks" if self.total else ""
        return ", ".join(filter(None, (count, self.module)))


@dataclass(frozen=True)
class Progress:
    """The next step of a check. Passed to `on_progress` before the step starts.

    Args:
        target_index: Number of the target, starting at 1: `2` of 3. For `compare`, equal to `target_count`.
        target_count: Number of targets in this check.
        target: Name of the target, as in `TargetSpec.name`. For `compare`, which covers all targets, the last
            one.
        step: `build` creates the fake module and its inputs, `trace` captures the program, `explore` searches
            for further problems after a failed capture, `analyse` collects facts and findings,
            `compare` compares the programs of the targets.
        finding: For `explore`, the error that stopped the capture, on one line; "" for the other steps.
        blocks: For `trace`, a live count of traced blocks: `blocks.done` of `blocks.total`. None for the
            other steps, and with `strict=True`.
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
            raise ValueError(f"target_index must be in 1 to {self.target_count}; got {self.target_index}")
        if self.step not in get_args(Step):
            raise ValueError(f"step must be one of {', '.join(get_args(Step))}; got {self.step!r}")
