"""Check one target, from the construction of the model to a result that can be passed between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.checking.check_steps import Announcer, Clock
from fakexport.checking.isolation import why_shared
from fakexport.checking.rank_programs import RankProgram, Starts, with_other_ranks
from fakexport.checking.ranks import RankFailure, summarise_ranks
from fakexport.checking.runtime_answers import runtime_verdicts
from fakexport.checking.stages import StagedProgram, diagnose_inseparable
from fakexport.checking.target_answer import Answer, Wanted, versions
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
    prepare,
)
from fakexport.exporting.guards import InputSizes
from fakexport.exporting.program import (
    compared,
    inspect_module,
    summarise,
    transfers,
    walk,
)
from fakexport.exporting.stages import InseparableStages, StageError
from fakexport.files import PluginError
from fakexport.files.processes import NoAnswer
from fakexport.models import DynamicDims, import_loaded_libraries
from fakexport.models.sources import Source
from fakexport.planning import diagnose_memory, memory_left
from fakexport.report import SavedPrograms, Timings, Verdict
from fakexport.report.diagnose import (
    diagnose_assumptions,
    diagnose_attention,
    diagnose_build,
    diagnose_failure,
    diagnose_internal_fault,
    diagnose_left_out,
    diagnose_not_saved,
    diagnose_process_ended,
    diagnose_program,
    diagnose_with_plugins,
    headline,
    in_rank,
    unused_note,
)
from fakexport.rules.diagnostics import Diagnostic

Outcome = tuple[Verdict, tuple[Diagnostic, ...], "_Checked | None"]


class TargetCheck:
    """The check of one target. `root` is the same as for `save`."""

    def __init__(
        self, request: ModelRequest, target: Target, announce: Announcer, wanted: Wanted, root: Path
    ) -> None:
        self._request, self._target, self._wanted, self._root = request, target, wanted, root
        self._clock = Clock(announce)
        self._is_counted = wanted.progress and not request.asked.strict
        self._emulation = ExitStack()
        self._is_forking = request.asked.rank == "all" and why_shared() is None  # Before CUDA is emulated.
        self._verdict = Verdict(target.spec, False, None, None, (), self._timings())

    def outcome(self) -> Outcome:
        """Return the verdict, the findings and the programs. Raise errors that the caller caused."""
        target, clock = self._target, self._clock

        def failed(*found: Diagnostic, notes: tuple[str, ...] = ()) -> Outcome:
            row = replace(self._verdict, failed_stage=clock.stage, timings=self._timings(), notes=notes)
            return row, _of_target(target, found), None

        try:
            with self._emulated():
                found = self._checked()
            if isinstance(found, _Failure):
                return failed(*found.found, notes=found.notes)
            verdict = replace(found.verdict, timings=self._timings())
            return verdict, _of_target(target, found.diagnostics), found
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

    @contextmanager
    def _emulated(self) -> Iterator[None]:
        """Emulate the target's devices until the end of the block, or until `_emulation` is closed."""
        with self._emulation:
            self._emulation.enter_context(torch_logs_silenced())
            self._emulation.enter_context(emulate(self._target.topology))
            yield

    def _checked(self) -> _Checked | _Failure:
        request, source = self._request, self._request.source
        whole = None  # The unsharded program, to compare the ranks' programs with.
        if source.parallel is not None:
            found = self._traced_source(source.parallel.whole)
            if isinstance(found, _Failure):
                return found
            whole = found.program
        first = partial(self._first, whole)
        if request.ranks is None or request.degrees is None:
            return first()
        if self._is_forking:
            others = range(1, request.degrees.ranks)
            with self._clock.all_counted():
                own, apart = with_other_ranks(others, partial(self._rank_apart, whole), first)
        else:
            own, apart = first(), {}
        return own if isinstance(own, _Failure) else self._with_ranks(own, whole, apart)

    def _first(
        self, whole: ExportedProgram | None, tell: Callable[[Starts], None] = lambda _: None
    ) -> _Checked | _Failure:
        """Trace and judge the program of rank 0. `tell` gets the places at which its stages begin."""
        trace = self._traced_source(self._request.source, whole)
        if isinstance(trace, _Failure):
            return trace
        with self._clock.running("analyse"):
            judged, found = self._judged(trace)
        self._emulation.close()
        stages = judged.stages if self._wanted.stages else None
        starts = None if stages is None else tuple(each.start for each in stages.stages[1:])
        tell(starts)
        placed = trace.model.built.placement.input_device
        return _Checked(trace.program, judged, found, starts, placed, {0: self._rank(trace.program, starts)})

    def _rank(self, program: ExportedProgram, starts: Starts) -> RankProgram:
        return RankProgram.of(program, starts, self._wanted, self._request.asked.sizes, root=self._root)

    def _rank_apart(
        self, whole: ExportedProgram | None, rank: int, starts: Callable[[], Starts]
    ) -> RankProgram | None:
        """Trace a rank in a forked process. None if it fails, because the parent repeats it to report why."""
        self._clock, self._is_counted = Clock(Announcer()), False
        try:
            trace = self._traced_rank(rank, whole)
            self._emulation.close()
            return None if isinstance(trace, _Failure) else self._rank(trace.program, starts())
        except Exception:
            return None

    def _traced_rank(self, rank: int, whole: ExportedProgram | None) -> _Trace | _Failure:
        assert self._request.ranks is not None
        return self._traced_source(self._request.ranks(rank), whole)

    def _with_ranks(
        self,
        own: _Checked,
        whole: ExportedProgram | None,
        apart: Mapping[int, RankProgram | NoAnswer | None],
    ) -> _Checked | _Failure:
        """Add the other ranks to the check of rank 0, or return a failure. `apart` are known results."""
        request, found = self._request, dict(own.ranks)
        assert request.degrees is not None

        def traced(rank: int) -> RankProgram | RankFailure:
            known = found.get(rank) or apart.get(rank)
            if isinstance(known, NoAnswer):
                ended = diagnose_process_ended(known.reason, known.last_lines, target=self._target.spec.name)
                return RankFailure(rank, (ended,))
            if known is None:
                with self._emulated():
                    other = self._traced_rank(rank, whole)
                if isinstance(other, _Failure):
                    return RankFailure(rank, other.found, other.notes)
                known = self._rank(other.program, own.starts)
            found[rank] = known
            return known

        ranks = summarise_ranks(
            own.program,
            request.degrees,
            traced,
            profile=self._target.topology.device(own.input_device).profile,
            is_every=request.asked.rank == "all",
        )
        if isinstance(ranks, RankFailure):
            return _Failure(ranks.found, (f"rank 0 exports, but rank {ranks.rank} does not", *ranks.notes))
        return replace(own, verdict=replace(own.verdict, ranks=ranks), ranks=found)

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

    def _judged(self, trace: _Trace) -> tuple[Verdict, tuple[Diagnostic, ...]]:
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
            self._verdict,
            target=replace(target.spec, assumptions=assumptions),
            is_exportable=True,
            summary=summary,
            transfers=transfers(program),
            recovered=trace.captured.recovered,
            memory_left=memory_left(summary, target.topology) if staged is None else staged.memory_left,
            notes=built.notes + unused + findings.notes,
            placement=built.placement.device_map,
            modules=inspect_module(built.module),
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

    @property
    def program(self) -> ExportedProgram:
        assert self.captured.program is not None
        return self.captured.program


@dataclass(frozen=True)
class _Checked:
    """The program of the model or of rank 0, its verdict and findings, and what is known about all ranks."""

    program: ExportedProgram
    verdict: Verdict
    diagnostics: tuple[Diagnostic, ...]
    starts: Starts
    input_device: str
    ranks: Mapping[int, RankProgram]


@dataclass(frozen=True)
class _Failure:
    found: tuple[Diagnostic, ...]
    notes: tuple[str, ...]


def _of_target(target: Target, found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    return tuple(replace(diagnostic, targets=(target.spec.name,)) for diagnostic in found)


def import_for_checks() -> None:
    """Import the modules that `answer_for` would otherwise import in each process."""
    import_loaded_libraries()
    from fakexport.archive import save  # noqa: F401 (the package fetches names on first use)


def answer_for(
    request: ModelRequest, target: Target, wanted: Wanted, announce: Announcer, *, root: Path
) -> Answer:
    """Check one target of a request. `root` is the same as for `save`.

    Raises:
        ValueError, TypeError: invalid usage, as for `check`.
    """
    verdict, found, checked = TargetCheck(request, target, announce, wanted, root).outcome()
    if checked is None:
        return Answer(request.name, verdict, found, versions())
    program, ranks = checked.program, checked.ranks
    input_sizes = InputSizes.of(program) if request.asked.sizes else None
    refused = next((each.refused for each in ranks.values() if each.refused is not None), None)
    if refused is not None:
        verdict = replace(verdict, is_exportable=False, failed_stage="analyse")
        if not any(each.code == refused.code for each in found):
            found = (*found, replace(refused, targets=(verdict.target.name,)))
        return Answer(request.name, verdict, found, versions(), None, input_sizes)
    # Always saved, because a program that no archive can store is also a finding of `check`.
    saved = SavedPrograms.of_ranks({n: each.saved for n, each in ranks.items() if each.saved}, root=root)
    if saved.fault is not None:
        left = diagnose_not_saved(saved.fault, versions=versions())
        found = (*found, replace(left, targets=(verdict.target.name,)))
    if wanted.runtimes:
        answers = runtime_verdicts(program, wanted.runtimes)
        verdict = replace(verdict, runtimes=answers)
        reasons = [diagnostic for answer in answers for diagnostic in answer.diagnostics]
        found = (*found, *_of_target(target, reasons))
    if wanted.programs:
        verdict = replace(verdict, saved=saved)
    if wanted.fingerprints:
        prints = {rank: each.fingerprint for rank, each in ranks.items() if each.fingerprint is not None}
        verdict = replace(verdict, fingerprints=prints)
    return Answer(
        request.name,
        verdict,
        found,
        versions(),
        compared(program) if wanted.compared else None,
        input_sizes,
    )
