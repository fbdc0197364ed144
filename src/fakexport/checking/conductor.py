"""The main job: does this model export for these targets? The only module that knows every step of it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import nn

from fakexport._renamed import renamed
from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._version import __version__
from fakexport.capture import (
    DynamicDims,
    ModelNotBuilt,
    TracedBlocks,
    build_source,
    capture_or_explore,
    facts_at_capture,
    given_inputs,
    loaded_libraries,
    parse_dynamic,
    refuse_strict,
    verify_reuse,
)
from fakexport.checking.targets import (
    DeviceMapText,
    OneTarget,
    Target,
    parse_target,
    parse_targets,
)
from fakexport.devices import check_emulation, emulate, peak_bytes
from fakexport.diagnose import (
    diagnose_assumptions,
    diagnose_build,
    diagnose_failure,
    diagnose_internal_fault,
    diagnose_omitted_inputs,
    diagnose_program,
    diagnose_quantization,
    headline,
    memory_left,
    unused_note,
)
from fakexport.diagnostics import Diagnostic, fold
from fakexport.error import InvalidValue
from fakexport.fake import Built, SubclassNotKept, install_transfers
from fakexport.program import ModuleSummary, diff, inspect_module, summarise, transfers
from fakexport.report import Progress, Report, Stage, Step, TargetDifference, Timings, Verdict
from fakexport.sources import (
    ExampleInputs,
    ExportedWorkload,
    InputSpec,
    Source,
    SourceError,
    exported_workload,
    inputs_from_specs,
    parse_input_spec,
    resolve,
)

__all__ = ["check", "inspect"]


@renamed(targets="target")
def check(
    source: str | nn.Module | Callable[[], Any],
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: OneTarget | Sequence[OneTarget] = "cpu",
    device_map: DeviceMapText | None = None,
    dtype: str | torch.dtype | None = None,
    inputs: Sequence[str] = (),
    dynamic_shapes: str | Sequence[str] | None = None,
    strict: bool = False,
    use_cache: bool = False,
    workload: ExportedWorkload = "forward",
    cache_length: int | None = None,
    reuse_blocks: bool = True,
    verify_reuse: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Check whether a model exports for each target, how the programs differ, and what blocks the export.

    No weight is downloaded or allocated, and none of the devices needs to exist.

    Args:
        source: `file.py:factory`, `package.module:factory`, `hf:org/name`, `hf:config.json`,
            `hf:MODEL_TYPE[:CLASS]`, `timm:NAME`; or a factory; or a module, whose weights are not read.
        args: Positional example inputs, real or fake, as for `export`. Default: what the factory returned, or
            derived ones.
        kwargs: Keyword example inputs, treated the same way.
        target: A topology, such as `"H100"`, or several in a list. One may be a mapping with `topology` and,
            to override the arguments of the same names, `device_map` and `dtype`.
        device_map: Where the modules are: a device, `"balanced"`, `"fc1=cpu,fc2=cuda:0"`, a mapping, or
            the path of a JSON file.
        dtype: Default floating-point dtype while the model is constructed, such as `"bfloat16"`.
        inputs: Example inputs, such as `"pixel_values=float32[1,3,224,224]"`, which override derived ones.
        dynamic_shapes: `"auto"`, or dimensions such as `"input_ids.1=2..4096"`.
        strict: Trace with TorchDynamo instead of running the Python code.
        use_cache: Let a language model return the KV cache of its input; it takes none.
        workload: `prefill` or `decode` of an `hf:` model: the cache is inputs and outputs of the program.
        cache_length: With such a workload: a static cache of so many tokens, in place of one that grows.
        reuse_blocks: Trace a few of equal blocks, not each; the program is the same.
        verify_reuse: Reuse blocks, capture a second time with every block traced, and compare; FE001 if the
            programs differ.
        on_progress: Called at the start of each step.
    Returns:
        One verdict per target in the order asked, the differences, and the diagnostics.
    Raises:
        ValueError: bad usage: an unknown source, target, input, dimension or device map; one line.
        TypeError: a factory that does not return a module.
    Reports:
        FE001, FE101 to FE105, FE201 to FE210, FE301 to FE305, FE401 to FE404, FE502, FE503, FE505, FE506,
        FE601 to FE603, and FE901 to FE907.

    Example:
        >>> report = check(lambda: (nn.Linear(4, 2), (torch.zeros(3, 4),)), target=["cpu", "H100"])
        >>> [verdict.is_exportable for verdict in report.verdicts]
        [True, True]
    """
    if inputs and not (args is None and kwargs is None):
        raise InvalidValue("example inputs are given twice: as args and kwargs, and as inputs")
    refuse_strict(verify_reuse=verify_reuse, strict=strict)
    given = bool(inputs) or not (args is None and kwargs is None)
    call, dynamic_shapes = exported_workload(workload, dynamic_shapes, cache_length, has_inputs=given)
    model = resolve(source, use_cache=use_cache, workload=call)
    request = _Request(
        source=model,
        inputs=[parse_input_spec(text) for text in inputs],
        args=args,
        kwargs=kwargs,
        dynamic=parse_dynamic(dynamic_shapes or ()),
        dynamic_shapes=dynamic_shapes or None,
        is_strict=strict,
        is_reusing=reuse_blocks,
        is_reuse_verified=verify_reuse,
        is_watched=on_progress is not None,
        start_rss_bytes=peak_bytes(),
    )
    asked = parse_targets(target, device_map, dtype, model)
    for row in asked:
        check_emulation(row.topology)
    announce = on_progress or (lambda progress: None)
    outcomes = []
    for index, row in enumerate(asked, start=1):

        def step(
            step: Step,
            finding: str = "",
            blocks: TracedBlocks | None = None,
            index: int = index,
            name: str = row.spec.name,
        ) -> None:
            announce(Progress(index, len(asked), name, step, finding, blocks))

        outcomes.append(_check_target(request, row, step))
    verdicts = tuple(verdict for verdict, _ in outcomes)
    if sum(verdict.is_exportable for verdict in verdicts) > 1:
        announce(Progress(len(asked), len(asked), "", "compare"))
    return Report(
        source=model.spec,
        verdicts=verdicts,
        differences=tuple(_differences(verdicts)),
        diagnostics=fold(
            diagnostic
            for row, (_, found) in zip(asked, outcomes, strict=True)
            for diagnostic in (*_of_target(row, diagnose_quantization(model)), *found)
        ),
        versions=_versions(),
    )


def inspect(
    source: str | nn.Module | Callable[[], Any],
    *,
    topology: str = "cpu",
    device_map: DeviceMapText | None = None,
    dtype: str | torch.dtype | None = None,
) -> ModuleSummary:
    """Return the architecture of a model that need not fit this machine: modules, parameters, bytes, devices.

    Args:
        source, device_map, dtype: as for `check`.
        topology: The devices that the device map may name.
    Returns:
        The root module; repeated blocks are folded.
    Raises:
        ValueError, TypeError: as for `check`.
        ModelNotBuilt: the constructor raised; its cause is what it raised.
    """
    model = resolve(source)
    target = parse_target({"topology": topology}, device_map, dtype, model)
    with torch_logs_silenced(), emulate(target.topology):
        return inspect_module(_build(model, target).module)


@dataclass(frozen=True)
class _Request:
    """What is the same for every target."""

    source: Source
    inputs: Sequence[InputSpec]
    args: tuple[Any, ...] | None
    kwargs: Mapping[str, Any] | None
    dynamic: DynamicDims
    dynamic_shapes: str | Sequence[str] | None
    is_strict: bool
    is_reusing: bool
    is_reuse_verified: bool
    is_watched: bool
    start_rss_bytes: int

    @property
    def has_given_inputs(self) -> bool:
        return not (self.args is None and self.kwargs is None)

    @property
    def is_input_chosen(self) -> bool:
        return bool(self.inputs) or self.has_given_inputs


class Announce(Protocol):
    """Tells the caller of `check` what is done now: what was found before `explore`, how far `trace` is."""

    def __call__(self, step: Step, finding: str = "", blocks: TracedBlocks | None = None) -> None: ...


@dataclass
class _Clock:
    """The stage that runs, and the wall time of those that ran."""

    announce: Announce
    stage: Stage = "build"
    seconds: dict[Stage, float] = field(default_factory=dict)

    @contextmanager
    def running(self, stage: Stage, step: Step, blocks: TracedBlocks | None = None) -> Iterator[None]:
        self.stage = stage
        self.announce(step, blocks=blocks)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = time.perf_counter() - start


Outcome = tuple[Verdict, tuple[Diagnostic, ...]]


def _check_target(request: _Request, target: Target, announce: Announce) -> Outcome:
    """Return one target from construction to verdict. A bad call is raised, everything else is an outcome."""
    clock = _Clock(announce)
    verdict = Verdict(target.spec, False, None, None, (), _timings(request, clock))

    def failed(*found: Diagnostic, notes: tuple[str, ...] = ()) -> Outcome:
        row = replace(verdict, failed_stage=clock.stage, timings=_timings(request, clock), notes=notes)
        return row, _of_target(target, found)

    try:
        with torch_logs_silenced(), emulate(target.topology):
            with clock.running("build", "build"):
                built, inputs = _made(request, target)
            is_counted = request.is_watched and not request.is_strict
            blocks = TracedBlocks(built.module) if is_counted else None
            with (
                clock.running("capture", "trace", blocks),
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
                    facts=facts_at_capture(
                        request.source,
                        target.topology,
                        built,
                        inputs,
                        dtype=target.dtype,
                        dynamic_shapes=request.dynamic_shapes,
                        is_strict=request.is_strict,
                    ),
                    on_failure=lambda failure: announce(
                        "explore", headline(diagnose_failure(failure, topology=target.topology)[0])
                    ),
                    reuse=request.is_reusing or request.is_reuse_verified,
                )
            if request.is_reuse_verified:
                verify_reuse(
                    captured, request.source, lambda: _made(request, target), dynamic=request.dynamic
                )
            if captured.program is None or captured.recovered is None:
                assert captured.failure is not None
                assert explored is not None
                omitted = diagnose_omitted_inputs(None, built.module, inputs)
                found = diagnose_failure(captured.failure, explored, topology=target.topology)
                return failed(*omitted, *found, notes=tuple(diagnose_assumptions(explored)))
            with clock.running("analyse", "analyse"):
                summary = summarise(captured.program)
                findings = diagnose_program(captured, summary, target.topology, request.dynamic)
                omitted = diagnose_omitted_inputs(captured.program, built.module, inputs)
                # Anyone who names the inputs of a library's model chooses what of it runs: a note is enough.
                is_chosen = request.is_input_chosen and request.source.kind != "python"
                unused = unused_note(captured.program, built.module) if is_chosen else ()
                verdict = replace(
                    verdict,
                    target=replace(
                        target.spec, assumptions=_distinct(target.spec.assumptions + inputs.assumptions)
                    ),
                    is_exportable=True,
                    summary=summary,
                    transfers=transfers(captured.program),
                    recovered=captured.recovered,
                    memory_left=memory_left(summary, target.topology),
                    notes=built.notes + unused + findings.notes,
                    placement=built.placement.device_map,
                    program=captured.program,
                )
        verdict = replace(verdict, timings=_timings(request, clock))
        return verdict, _of_target(target, (*omitted, *findings.diagnostics))
    except ModelNotBuilt as error:
        return failed(diagnose_build(error.__cause__ or error, topology=target.topology))
    except SubclassNotKept as error:
        return failed(diagnose_build(error))
    except (ValueError, TypeError) as error:
        if clock.stage != "analyse":
            raise  # Placement, inputs and dynamic dimensions say in one line what does not fit.
        return failed(diagnose_internal_fault(error, versions=_versions()))
    except Exception as error:
        return failed(diagnose_internal_fault(error, versions=_versions()))


def _of_target(target: Target, found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    return tuple(replace(diagnostic, targets=(target.spec.name,)) for diagnostic in found)


def _build(source: Source, target: Target) -> Built:
    return build_source(source, target.topology, device_map=target.device_map, dtype=target.dtype)


def _made(request: _Request, target: Target) -> tuple[Built, ExampleInputs]:
    built = _build(request.source, target)
    return built, _inputs(request, built, target)


def _inputs(request: _Request, built: Built, target: Target) -> ExampleInputs:
    if request.has_given_inputs:
        return given_inputs(built, request.args, request.kwargs)
    device = built.placement.input_device
    with built.mode, install_transfers(built.module, built.placement):
        if not request.inputs:
            return _example_inputs(request.source, built, device, target.dtype)
        try:
            expected = _example_inputs(request.source, built, device, target.dtype)
        except SourceError:
            expected = None  # The source knows none to compare with.
        return inputs_from_specs(request.inputs, built.module, device, expected=expected)


def _example_inputs(source: Source, built: Built, device: str, dtype: torch.dtype | None) -> ExampleInputs:
    if built.args or built.kwargs:
        return ExampleInputs(built.args, built.kwargs)
    return source.example_inputs(built.module, device, dtype)


def _differences(verdicts: Sequence[Verdict]) -> Iterator[TargetDifference]:
    exported = [(verdict.target.name, verdict.program) for verdict in verdicts if verdict.program is not None]
    for name, program in exported[1:]:
        first_name, first = exported[0]
        yield TargetDifference(first_name, name, diff(first, program))


def _distinct(sentences: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentences))


def _timings(request: _Request, clock: _Clock) -> Timings:
    peak = peak_bytes()
    build_s, capture_s, analyse_s = (clock.seconds.get(s, 0.0) for s in ("build", "capture", "analyse"))
    return Timings(build_s, capture_s, analyse_s, peak, peak - request.start_rss_bytes)


def _versions() -> dict[str, str]:
    return {
        "fakexport": __version__,
        "torch": str(torch.__version__),
        **loaded_libraries(),
        "python": platform.python_version(),
    }
