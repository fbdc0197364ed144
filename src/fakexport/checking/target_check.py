"""Check one target, from the construction of the model to a result that can be passed between processes."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._version import __version__
from fakexport.checking.ranks import RankFailure, summarise_ranks
from fakexport.checking.runtime_answers import runtime_verdicts
from fakexport.checking.stages import StagedProgram, diagnose_inseparable, stages_of_ranks
from fakexport.checking.targets import Target
from fakexport.emulation.devices import emulate, peak_bytes
from fakexport.emulation.fake import UnsupportedSubclassError
from fakexport.error import raise_missing
from fakexport.exporting.capture import (
    Captured,
    ModelNotBuilt,
    ModelRequest,
    PreparedModel,
    TracedBlocks,
    capture_or_explore,
    loaded_libraries,
    prepare,
)
from fakexport.exporting.guards import InputSizes
from fakexport.exporting.program import (
    ComparedProgram,
    compared,
    fingerprint,
    inspect_module,
    summarise,
    transfers,
    walk,
)
from fakexport.exporting.stages import InseparableStages, StageError
from fakexport.files import PluginError
from fakexport.models import DynamicDims, import_loaded_libraries
from fakexport.models.sources import Source
from fakexport.planning import diagnose_memory, memory_left
from fakexport.report import RankSummary, SavedPrograms, Stage, Step, Timings, Verdict
from fakexport.report.diagnose import (
    diagnose_assumptions,
    diagnose_attention,
    diagnose_build,
    diagnose_failure,
    diagnose_internal_fault,
    diagnose_left_out,
    diagnose_not_saved,
    diagnose_program,
    diagnose_refused_sizes,
    diagnose_with_plugins,
    headline,
    in_rank,
    unused_note,
)
from fakexport.rules.diagnostics import Diagnostic

STAGES: Mapping[Step, Stage] = {
    "build": "build",
    "trace": "capture",
    "explore": "capture",
    "analyse": "analyse",
}
"""Step of a check -> the stage that it belongs to."""

Outcome = tuple[Verdict, tuple[Diagnostic, ...], Mapping[int, ExportedProgram]]


class Announce(Protocol):
    """Reports the current step to the caller of `check`."""

    def step(self, step: Step, finding: str = "", blocks: int | None = None) -> None:
        """Start a step. `explore` gets the error as `finding`. `blocks` is the number of blocks to trace."""

    def done(self, blocks: int, module: str) -> None:
        """Report the number of traced blocks, and the path of the module that is being traced."""


class TargetCheck:
    """The check of one target. If `is_counted`, `announce` receives the number of traced blocks."""

    def __init__(
        self, request: ModelRequest, target: Target, announce: Announce, *, is_counted: bool
    ) -> None:
        self._request, self._target = request, target
        self._clock = _Clock(announce)
        self._is_counted = is_counted and not request.asked.strict

    def outcome(self) -> Outcome:
        """Return the verdict, the findings and the programs by rank. Raise errors that the caller caused."""
        target, clock = self._target, self._clock
        verdict = Verdict(target.spec, False, None, None, (), self._timings())

        def failed(*found: Diagnostic, notes: tuple[str, ...] = ()) -> Outcome:
            row = replace(verdict, failed_stage=clock.stage, timings=self._timings(), notes=notes)
            return row, _of_target(target, found), {}

        try:
            with torch_logs_silenced(), emulate(target.topology):
                trace = self._traced()
                if isinstance(trace, _Failure):
                    return failed(*trace.found, notes=trace.notes)
                with clock.running("analyse"):
                    judged, found = self._judged(verdict, trace)
            programs = trace.rank_programs or {0: trace.program}
            return replace(judged, timings=self._timings()), _of_target(target, found), programs
        except ModelNotBuilt as error:
            raise_missing(error)
            cause, published = error.__cause__ or error, self._request.source.published
            return failed(diagnose_build(cause, topology=target.topology, published=published))
        except UnsupportedSubclassError as error:
            return failed(diagnose_build(error))
        except InseparableStages as error:
            return failed(diagnose_inseparable(error))
        except PluginError:
            raise
        except (ValueError, TypeError) as error:
            if clock.stage != "analyse" or isinstance(error, StageError):
                raise  # Errors of placement, inputs and dynamic dimensions have one-line messages.
            return failed(diagnose_internal_fault(error, versions=versions()))
        except Exception as error:
            raise_missing(error)
            return failed(diagnose_internal_fault(error, versions=versions()))

    def _traced(self) -> _Trace | _Failure:
        source = self._request.source
        whole = None  # The unsharded program, to compare the ranks' programs with.
        if source.parallel is not None:
            found = self._traced_source(source.parallel.whole)
            if isinstance(found, _Failure):
                return found
            whole = found.program
        trace = self._traced_source(source, whole)
        return trace if isinstance(trace, _Failure) else self._with_ranks(trace, whole)

    def _with_ranks(self, trace: _Trace, whole: ExportedProgram | None) -> _Trace | _Failure:
        """Add a summary of all ranks to the trace of rank 0; return a failure if a rank fails."""
        request, source_of = self._request, self._request.ranks
        if source_of is None or request.degrees is None:
            return trace

        programs = {0: trace.program}

        def traced(rank: int) -> ExportedProgram | RankFailure:
            other = self._traced_source(source_of(rank), whole)
            if isinstance(other, _Failure):
                return RankFailure(rank, other.found, other.notes)
            programs[rank] = other.program
            return other.program

        ranks = summarise_ranks(
            trace.program,
            request.degrees,
            traced,
            profile=self._target.topology.device(trace.model.built.placement.input_device).profile,
            is_every=request.asked.rank == "all",
        )
        if isinstance(ranks, RankFailure):
            return _Failure(ranks.found, (f"rank 0 exports, but rank {ranks.rank} does not", *ranks.notes))
        return replace(trace, ranks=ranks, rank_programs=programs)

    def _traced_source(self, source: Source, whole: ExportedProgram | None = None) -> _Trace | _Failure:
        request, target, clock = self._request, self._target, self._clock
        with clock.running("build"):
            model = prepare(
                request, target.topology, device_map=target.device_map, dtype=target.dtype, source=source
            )
        blocks = TracedBlocks(model.built.module, clock.announce.done) if self._is_counted else None
        with (
            clock.running("trace", None if blocks is None else blocks.total),
            model.transfers(),
            nullcontext() if blocks is None else blocks.counted(),
        ):
            captured, explored = capture_or_explore(
                model,
                on_failure=lambda failure: clock.announce.step(
                    "explore", headline(diagnose_failure(failure, topology=target.topology)[0])
                ),
                whole=whole,
            )
        if captured.program is None or captured.recovered is None:
            assert captured.failure is not None
            assert explored is not None
            found = diagnose_failure(
                captured.failure, explored, topology=target.topology, published=source.published
            )
            if request.degrees is not None and whole is not None:
                found = tuple(in_rank(found, request.degrees.ranks))
            omitted = diagnose_left_out(source, None, model.built.module, model.inputs)
            return _Failure((*omitted, *found), tuple(diagnose_assumptions(explored)))
        return _Trace(model, captured)

    def _judged(self, verdict: Verdict, trace: _Trace) -> tuple[Verdict, tuple[Diagnostic, ...]]:
        target = self._target
        request, program, built, inputs = self._request, trace.program, trace.model.built, trace.model.inputs
        summary = summarise(program)
        named = request.dynamic if isinstance(request.dynamic, DynamicDims) else DynamicDims()
        findings = diagnose_program(trace.captured, summary, named)
        plugged = diagnose_with_plugins(program)
        attention = diagnose_attention(walk(program), target.topology)
        staged = StagedProgram.of(program, request.parallel, target.topology)
        memory = (
            diagnose_memory(program, summary, target.topology) if staged is None else staged.memory_finding
        )
        omitted = diagnose_left_out(request.source, program, built.module, inputs)
        # If the user names the inputs of a library's model, omitted parts are intended: a note is enough.
        unused = unused_note(
            request.source, program, built.module, inputs, is_chosen=request.asked.is_input_chosen
        )
        assumptions = tuple(dict.fromkeys((*target.spec.assumptions, *inputs.assumptions)))
        judged = replace(
            verdict,
            target=replace(target.spec, assumptions=assumptions),
            is_exportable=True,
            summary=summary,
            transfers=transfers(program),
            recovered=trace.captured.recovered,
            memory_left=memory_left(summary, target.topology) if staged is None else staged.memory_left,
            notes=built.notes + unused + findings.notes,
            placement=built.placement.device_map,
            modules=inspect_module(built.module),
            ranks=trace.ranks,
            stages=None if staged is None else staged.summary,
        )
        return judged, (*omitted, *findings.diagnostics, *plugged, *attention, *((memory,) if memory else ()))

    def _timings(self) -> Timings:
        peak = peak_bytes()
        build_s, capture_s, analyse_s = (
            self._clock.seconds.get(s, 0.0) for s in ("build", "capture", "analyse")
        )
        return Timings(build_s, capture_s, analyse_s, peak, peak - self._request.start_rss_bytes)


@dataclass(frozen=True)
class _Trace:
    """A model with its inputs, and the captured program."""

    model: PreparedModel
    captured: Captured
    ranks: RankSummary | None = None
    rank_programs: Mapping[int, ExportedProgram] = field(default_factory=dict)

    @property
    def program(self) -> ExportedProgram:
        assert self.captured.program is not None
        return self.captured.program


@dataclass(frozen=True)
class _Failure:
    found: tuple[Diagnostic, ...]
    notes: tuple[str, ...]


@dataclass
class _Clock:
    announce: Announce
    stage: Stage = "build"
    seconds: dict[Stage, float] = field(default_factory=dict)

    @contextmanager
    def running(self, step: Step, blocks: int | None = None) -> Iterator[None]:
        stage = self.stage = STAGES[step]
        self.announce.step(step, blocks=blocks)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


def _of_target(target: Target, found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    return tuple(replace(diagnostic, targets=(target.spec.name,)) for diagnostic in found)


def versions() -> dict[str, str]:
    """Return the versions of imported packages that a report depends on."""
    return {
        "fakexport": __version__,
        "torch": str(torch.__version__),
        **loaded_libraries(),
        "python": platform.python_version(),
    }


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which optional parts of a result are wanted. Each part takes time.

    Args:
        progress: The number of traced blocks and the current module, during the trace.
        programs: The saved programs.
        stages: The saved programs are the pipeline stages, if the model is cut into stages.
        fingerprints: Fingerprints of the programs, for a lock.
        compared: Data to compare the program with the programs of other targets.
        tried_fixes: Whether each fix of the report works, if it can be tried within one minute.
        runtimes: The answers of these runtimes.
    """

    progress: bool = False
    programs: bool = False
    stages: bool = False
    fingerprints: bool = False
    compared: bool = False
    tried_fixes: bool = False
    runtimes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Result of a check for one target; it can be passed between processes.

    Args:
        source: Name of the source.
        versions: Versions of the packages that the process has imported.
        compared: Data to compare targets, if the model exports and the check has several targets.
        input_sizes: The sizes of the program's inputs, if several programs divide the sizes among them.
    """

    source: str
    verdict: Verdict
    diagnostics: tuple[Diagnostic, ...]
    versions: Mapping[str, str]
    compared: ComparedProgram | None = None
    input_sizes: InputSizes | None = None

    @property
    def has_errors(self) -> bool:
        """Whether a finding is an error."""
        return any(found.severity == "error" for found in self.diagnostics)


def import_for_checks() -> None:
    """Import the modules that `answer_for` would otherwise import in each process."""
    import_loaded_libraries()
    from fakexport.archive import save  # noqa: F401 (the package fetches names on first use)


def answer_for(
    request: ModelRequest, target: Target, wanted: Wanted, announce: Announce, *, root: Path
) -> Answer:
    """Check one target of a request. `root` is the same as for `save`.

    Raises:
        ValueError, TypeError: invalid usage, as for `check`.
    """
    verdict, found, programs = TargetCheck(request, target, announce, is_counted=wanted.progress).outcome()
    sizes = request.asked.sizes
    input_sizes = InputSizes.of(programs[0]) if sizes and programs else None
    if sizes and programs and (refused := diagnose_refused_sizes(programs.values(), sizes)) is not None:
        # No archive may claim sizes that its program does not accept.
        verdict, programs = replace(verdict, is_exportable=False, failed_stage="analyse"), {}
        if not any(each.code == refused.code for each in found):
            found = (*found, replace(refused, targets=(verdict.target.name,)))
    # Always saved, because a program that no archive can store is also a finding of `check`.
    saved = None
    if programs and wanted.stages and verdict.stages is not None:
        stages = stages_of_ranks(programs, [each.start for each in verdict.stages.stages[1:]])
        saved = SavedPrograms.of_stages(stages, root=root)
    elif programs:
        saved = SavedPrograms.of(programs, root=root, is_kept=wanted.programs)
    if saved is not None and saved.fault is not None:
        left = diagnose_not_saved(saved.fault, versions=versions())
        found = (*found, replace(left, targets=(verdict.target.name,)))
    if programs and wanted.runtimes:
        answers = runtime_verdicts(programs[0], wanted.runtimes)
        verdict = replace(verdict, runtimes=answers)
        reasons = [diagnostic for answer in answers for diagnostic in answer.diagnostics]
        found = (*found, *_of_target(target, reasons))
    if wanted.programs:
        verdict = replace(verdict, saved=saved)
    if wanted.fingerprints:
        verdict = replace(verdict, fingerprints={rank: fingerprint(each) for rank, each in programs.items()})
    return Answer(
        request.name,
        verdict,
        found,
        versions(),
        compared(programs[0]) if wanted.compared and programs else None,
        input_sizes,
    )
