"""One target, from construction to verdict."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.capture import (
    Captured,
    DynamicDims,
    ModelNotBuilt,
    TracedBlocks,
    build_source,
    capture_or_explore,
    facts_at_capture,
    given_inputs,
)
from fakexport.checking.check_call import Request, versions
from fakexport.checking.ranks import RankFailure, summarise_ranks
from fakexport.checking.targets import Target
from fakexport.devices import emulate, peak_bytes
from fakexport.diagnose import (
    diagnose_assumptions,
    diagnose_build,
    diagnose_failure,
    diagnose_internal_fault,
    diagnose_left_out,
    diagnose_program,
    headline,
    in_rank,
    memory_left,
    unused_note,
)
from fakexport.diagnostics import Diagnostic
from fakexport.fake import Built, SubclassNotKept, install_transfers
from fakexport.history import recording
from fakexport.program import ProgramFacts, inspect_module, summarise, transfers
from fakexport.report import RankSummary, Stage, Step, Timings, Verdict
from fakexport.sources import ExampleInputs, Source, SourceError, inputs_from_specs

Outcome = tuple[Verdict, tuple[Diagnostic, ...], Mapping[int, ExportedProgram]]


class Announce(Protocol):
    """Tells the caller of `check` what is done now."""

    def step(self, step: Step, finding: str = "", blocks: int | None = None) -> None:
        """Begin a step: what was found before `explore`, how many blocks `trace` counts."""

    def done(self, blocks: int) -> None:
        """Say how many blocks are traced."""


class TargetCheck:
    """The check of one target.

    Args:
        request: What is asked.
        target: One of its targets.
        announce: Gets each step.
        is_counted: Whether `announce` gets the number of traced blocks.
    """

    def __init__(self, request: Request, target: Target, announce: Announce, *, is_counted: bool) -> None:
        self._request, self._target = request, target
        self._clock = _Clock(announce)
        self._is_counted = is_counted and not request.is_strict

    def outcome(self) -> Outcome:
        """Return the verdict, the findings and the programs by rank. A bad call is raised."""
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
                with clock.running("analyse", "analyse"):
                    judged, found = self._judged(verdict, trace)
            programs = trace.rank_programs or {0: trace.program}
            return replace(judged, timings=self._timings()), _of_target(target, found), programs
        except ModelNotBuilt as error:
            cause, published = error.__cause__ or error, self._request.source.published
            return failed(diagnose_build(cause, topology=target.topology, published=published))
        except SubclassNotKept as error:
            return failed(diagnose_build(error))
        except (ValueError, TypeError) as error:
            if clock.stage != "analyse":
                raise  # Placement, inputs and dynamic dimensions say in one line what does not fit.
            return failed(diagnose_internal_fault(error, versions=versions()))
        except Exception as error:
            return failed(diagnose_internal_fault(error, versions=versions()))

    def _traced(self) -> _Trace | _Failure:
        request, whole = self._request, self._traced_whole()
        if isinstance(whole, _Failure):
            return whole
        trace = self._traced_source(request, whole)
        return trace if isinstance(trace, _Failure) else self._with_ranks(trace, whole)

    def _traced_whole(self) -> ExportedProgram | _Failure | None:
        """Return the program that those of all ranks are compared with; None if the model is not parallel."""
        request, parallel = self._request, self._request.source.parallel
        if parallel is None:
            return None
        trace = self._traced_source(replace(request, source=parallel.whole))
        return trace if isinstance(trace, _Failure) else trace.program

    def _with_ranks(self, trace: _Trace, whole: ExportedProgram | None) -> _Trace | _Failure:
        """Return a trace with what the other ranks have in common with it; a failure if one of them fails."""
        request, source_of = self._request, self._request.ranks
        if source_of is None or request.degrees is None:
            return trace

        programs = {0: trace.program}

        def traced(rank: int) -> ExportedProgram | RankFailure:
            other = self._traced_source(replace(request, source=source_of(rank)), whole)
            if isinstance(other, _Failure):
                return RankFailure(rank, other.found, other.notes)
            programs[rank] = other.program
            return other.program

        ranks = summarise_ranks(
            trace.program,
            request.degrees,
            traced,
            profile=self._target.topology.device(trace.built.placement.input_device).profile,
            is_every=request.is_every_rank,
        )
        if isinstance(ranks, RankFailure):
            return _Failure(ranks.found, (f"rank 0 exports, and rank {ranks.rank} does not", *ranks.notes))
        return replace(trace, ranks=ranks, rank_programs=programs)

    def _traced_source(self, request: Request, whole: ExportedProgram | None = None) -> _Trace | _Failure:
        target, clock = self._target, self._clock
        with clock.running("build", "build"):
            built, inputs = _made(request, target)
        blocks = TracedBlocks(built.module, clock.announce.done) if self._is_counted else None
        with (
            clock.running("capture", "trace", None if blocks is None else blocks.total),
            install_transfers(built.module, built.placement),
            nullcontext() if blocks is None else blocks.counted(),
        ):
            captured, explored = capture_or_explore(
                built.module,
                inputs.args,
                inputs.kwargs,
                dynamic=request.dynamic,
                strict=request.is_strict,
                tracing=lambda: request.source.tracing(built.module, inputs),
                facts=_facts(request, target, built, inputs),
                on_failure=lambda failure: clock.announce.step(
                    "explore", headline(diagnose_failure(failure, topology=target.topology)[0])
                ),
                assumed=request.assumed,
                whole=whole,
            )
        if captured.program is None or captured.recovered is None:
            assert captured.failure is not None
            assert explored is not None
            found = diagnose_failure(
                captured.failure, explored, topology=target.topology, published=request.source.published
            )
            if request.degrees is not None and whole is not None:
                found = tuple(in_rank(found, request.degrees.ranks))
            omitted = diagnose_left_out(request.source, None, built.module, inputs)
            return _Failure((*omitted, *found), tuple(diagnose_assumptions(explored)))
        return _Trace(built, inputs, captured)

    def _judged(self, verdict: Verdict, trace: _Trace) -> tuple[Verdict, tuple[Diagnostic, ...]]:
        target = self._target
        request, program, built, inputs = self._request, trace.program, trace.built, trace.inputs
        summary = summarise(program)
        named = request.dynamic if isinstance(request.dynamic, DynamicDims) else DynamicDims()
        findings = diagnose_program(trace.captured, summary, target.topology, named)
        omitted = diagnose_left_out(request.source, program, built.module, inputs)
        # Anyone who names the inputs of a library's model chooses what of it runs: a note is enough.
        unused = unused_note(request.source, program, built.module, inputs, is_chosen=request.is_input_chosen)
        assumptions = tuple(dict.fromkeys((*target.spec.assumptions, *inputs.assumptions)))
        judged = replace(
            verdict,
            target=replace(target.spec, assumptions=assumptions),
            is_exportable=True,
            summary=summary,
            transfers=transfers(program),
            recovered=trace.captured.recovered,
            memory_left=memory_left(summary, target.topology),
            notes=built.notes + unused + findings.notes,
            placement=built.placement.device_map,
            modules=inspect_module(built.module),
            ranks=trace.ranks,
        )
        return judged, (*omitted, *findings.diagnostics)

    def _timings(self) -> Timings:
        peak = peak_bytes()
        build_s, capture_s, analyse_s = (
            self._clock.seconds.get(s, 0.0) for s in ("build", "capture", "analyse")
        )
        return Timings(build_s, capture_s, analyse_s, peak, peak - self._request.start_rss_bytes)


@dataclass(frozen=True)
class _Trace:
    """A model with its inputs, and the program that was captured of it."""

    built: Built
    inputs: ExampleInputs
    captured: Captured
    ranks: RankSummary | None = None
    rank_programs: Mapping[int, ExportedProgram] = field(default_factory=dict)

    @property
    def program(self) -> ExportedProgram:
        assert self.captured.program is not None
        return self.captured.program


@dataclass(frozen=True)
class _Failure:
    """Why there is no program."""

    found: tuple[Diagnostic, ...]
    notes: tuple[str, ...]


@dataclass
class _Clock:
    """The stage that runs, and the wall time of those that ran."""

    announce: Announce
    stage: Stage = "build"
    seconds: dict[Stage, float] = field(default_factory=dict)

    @contextmanager
    def running(self, stage: Stage, step: Step, blocks: int | None = None) -> Iterator[None]:
        self.stage = stage
        self.announce.step(step, blocks=blocks)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


def build_target(source: Source, target: Target) -> Built:
    """Return the fake model of a target, in the `emulate` block of its devices."""
    return build_source(source, target.topology, device_map=target.device_map, dtype=target.dtype)


def _of_target(target: Target, found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return what was found, as findings of a target."""
    return tuple(replace(diagnostic, targets=(target.spec.name,)) for diagnostic in found)


def _facts(request: Request, target: Target, built: Built, inputs: ExampleInputs) -> ProgramFacts:
    return facts_at_capture(
        request.source,
        target.topology,
        built,
        inputs,
        dtype=target.dtype,
        dynamic_shapes=request.dynamic_shapes,
        is_strict=request.is_strict,
    )


def _made(request: Request, target: Target) -> tuple[Built, ExampleInputs]:
    built = build_target(request.source, target)
    return built, _inputs(request, built, target)


@one_at_a_time
def _inputs(request: Request, built: Built, target: Target) -> ExampleInputs:
    if request.has_given_inputs:
        return given_inputs(built, request.args, request.kwargs)
    device = built.placement.input_device
    with built.mode, recording(built.mode), install_transfers(built.module, built.placement):
        if not request.inputs:
            return _example_inputs(request.source, built, device, target)
        try:
            expected = _example_inputs(request.source, built, device, target)
        except SourceError:
            expected = None  # The source knows none to compare with.
        return inputs_from_specs(request.inputs, built.module, device, expected=expected)


def _example_inputs(source: Source, built: Built, device: str, target: Target) -> ExampleInputs:
    if built.has_inputs:
        return ExampleInputs(built.args, built.kwargs)
    return source.example_inputs(built.module, device, target.dtype)
