"""Will it fit: the memory that a model or an archive needs, at each size that is asked for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport._version import __version__
from fakexport.archive import load
from fakexport.capture import loaded_libraries
from fakexport.devices import Topology, emulate
from fakexport.error import InvalidValue
from fakexport.memory import OptimizerName, SizeRequest, parse_bounds, parse_dims
from fakexport.parallel import Degrees, refuse_with_parallel
from fakexport.planning.automatic_placement import AUTO, automatic_placement
from fakexport.planning.point import PlannedProgram
from fakexport.planning.search import greatest, smallest_machines
from fakexport.planning.source_programs import PlanSource, SourcePrograms
from fakexport.planning.source_runs import SourceColumns, SourceRuns, Training
from fakexport.program import facts_of
from fakexport.report import Greatest, PlannedModule, PlannedPoint, PlanReport, Progress
from fakexport.sources import WorkloadName, parse_dtype

PROGRAM = "the program's module()"
EAGER = "eager mode"
AOTI = "the program that AOTInductor compiles for the CPU"
SourcePlan = SourcePrograms | SourceRuns | SourceColumns


@one_at_a_time
def plan(
    subject: str | Path | nn.Module | Callable[[], Any] | ExportedProgram,
    *,
    target: str | None = None,
    device_map: str | Mapping[str, str] | None = None,
    dtype: str | torch.dtype | None = None,
    batch: int | Sequence[int] | None = None,
    context: int | Sequence[int] | None = None,
    workload: WorkloadName = "forward",
    optimizer: OptimizerName | None = None,
    checkpointing: bool = False,
    autocast: str | None = None,
    sizes: Sequence[str] = (),
    bounds: Sequence[str] = (),
    maximum: Sequence[str] = (),
    smallest: bool = False,
    timeline: bool = False,
    by_module: bool = False,
    eager: bool = False,
    aoti: bool = False,
    method: str | None = None,
    parallel: str | None = None,
    assume: Sequence[str] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> PlanReport:
    """Return the memory that a model needs on each device, read off its exported program.

    Counted are the storages of the program, from the node that takes one to the last node that uses it. No
    weight is loaded and no device is needed.

    Args:
        subject: A source as for `check`, an archive (`model.pt2`), or an exported program.
        target: The devices, such as `"2xH100"`. Default: those of the archive or program; of a source, cpu.
        device_map, dtype: As for `check`; of a source only. `"auto"` is accelerate's placement, with room for
            what a call needs besides weights at the largest of the sizes.
        batch: Sequences or images at a time, one or several. Default: 1 for `hf:`, else the example's.
        context: Tokens that the model attends to, those of a cache included. Default: 4,096, or fewer where
            it takes no more, for a model of `hf:`; else that of the example inputs.
        workload: What an `hf:` model does: `"forward"` without a cache, `"prefill"`, which returns one, or
            `"decode"`, which reads one token and a cache. What any model does: `"train"`, two steps of a
            forward and a backward pass and an optimizer.
        optimizer: Of training: `"adamw"`, the default, `"adam"` or `"sgd"`, with torch's defaults.
        checkpointing: Of training: recompute the activations of a model's blocks in the backward pass.
        autocast: Of training: `"bfloat16"` or `"float16"`, for a forward pass in mixed precision.
        sizes: Other dimensions of inputs, such as `"pixel_values.2=448"`.
        bounds: The most that sizes may be which only a run would tell, such as `"u0=4096"`.
        maximum: `"batch"`, `"context"`, or both: find the largest that fits.
        smallest: Whether to find how many devices of each CUDA profile are enough, at the first of the sizes:
            the model is exported once for 1, 2, 4, 8 and 16 devices, as far as needed.
        timeline: Whether to return what is held node by node at the first of the sizes.
        by_module: Whether to return what each module computes and reads at the first of the sizes.
        eager: Whether to run the model's own code on fakes as well, where what Python frames keep alive
            counts: its figures are next to those of the program. Of forward calls only.
        aoti: Whether to plan the buffers of the program that AOTInductor compiles for the CPU as well: its
            figures are next to those of the program. Nothing is compiled.
        method: Program to use from a bundle.
        parallel: As for `check`: plan what a rank needs. `"tp"` or `"tp,ep"` shards the model over all
            devices of the target; with `smallest`, over each number of devices.
        assume: Conditions and integers that data decide, as for `check`; of a source's program only.
        on_progress: Called before each export.
    Returns:
        One point per batch and context, in the order asked.
    Raises:
        ValueError: bad usage: an unknown source or target, sizes that the program does not accept; one line.
        PlanError: the model does not export; `check` says why.

    Example:
        >>> report = plan(lambda: (nn.Linear(1024, 1024), (torch.zeros(2, 1024),)), target="H100")
        >>> report.points[0].devices[0].weights
        4198400
    """
    batches, contexts = _several("--batch", batch), _several("--context", context)
    if unknown := [role for role in maximum if role not in ("batch", "context")]:
        raise InvalidValue(f"--max {unknown[0]}: write batch or context")
    other = SizeRequest(dims=parse_dims(sizes), bounds=parse_bounds(bounds))
    asked = _Asked(batches, contexts, other, tuple(dict.fromkeys(maximum)), timeline, by_module)
    is_training = workload == "train"
    if not is_training and (optimizer, checkpointing, autocast) != (None, False, None):
        raise InvalidValue("--optimizer, --checkpointing and --autocast apply to --workload train")
    if isinstance(subject, (ExportedProgram, Path)) or _is_archive(subject):
        given = (device_map, dtype, parallel, workload, smallest, eager, tuple(assume))
        if given != (None, None, None, "forward", False, False, ()):
            raise InvalidValue(
                "--device-map, --dtype, --workload, --smallest, --eager, --parallel and --assume apply to "
                "models, not to programs"
            )
        if method is not None and isinstance(subject, ExportedProgram):
            raise InvalidValue("--method applies to archives, not to programs")
        return _of_program(subject, asked, target, method, has_aoti=aoti)
    if method is not None:
        raise InvalidValue("--method applies to archives, not to models")

    if is_training and (maximum or smallest or by_module or bounds):
        raise InvalidValue("--max, --smallest, --by-module and --bound do not apply to --workload train")
    if eager and (maximum or smallest or by_module):
        raise InvalidValue("--max, --smallest and --by-module do not apply to --eager")
    if aoti and (is_training or maximum or smallest or parallel is not None):
        raise InvalidValue("--max, --smallest, --parallel and --workload train do not apply to --aoti")
    if assume and (is_training or eager):
        raise InvalidValue(
            "--assume does not apply to --workload train and --eager, which run the code itself"
        )
    if eager and workload != "forward":
        raise InvalidValue(f"--eager does not apply to --workload {workload}")
    if aoti:
        _refuse_accelerators(target)
    asked_dtype = None if dtype is None else parse_dtype(dtype)
    if parallel is not None:
        check_parallel(parallel, device_map, workload, is_smallest=smallest, is_eager=eager)

    here = Path.cwd()

    def source_on(topology: Topology, placement: str | Mapping[str, str] | None) -> PlanSource:
        announce = on_progress or (lambda progress: None)
        degrees = degrees_on(topology, parallel)
        return PlanSource(
            subject, topology, placement, asked_dtype, here, announce, degrees, assume=tuple(assume)
        )

    def programs_on(topology: Topology, placement: str | Mapping[str, str] | None) -> SourcePrograms:
        return SourcePrograms(source_on(topology, placement), workload, has_aoti=aoti)

    placed = functools.partial(_placed, subject, target, device_map, dtype, asked)
    if is_training:
        training = Training(optimizer or "adamw", checkpointing, _autocast_dtype(autocast))
        runs = placed(lambda *where: SourceRuns(source_on(*where), training))
        return _of_source(*runs, asked, execution=f"two steps with {training}")
    if eager:
        return _of_source(*placed(lambda *where: SourceColumns(source_on(*where), has_aoti=aoti)), asked)
    report = _of_source(*placed(programs_on), asked)
    if not smallest:
        return report
    machines = smallest_machines(programs_on, next(asked.points()), is_parallel=parallel is not None)
    return replace(report, machines=machines)


@dataclass(frozen=True)
class _Asked:
    batches: tuple[int | None, ...]
    contexts: tuple[int | None, ...]
    other: SizeRequest
    maximum: tuple[str, ...]
    has_timeline: bool
    has_modules: bool

    def points(self) -> Iterator[SizeRequest]:
        for batch, context in itertools.product(self.batches, self.contexts):
            yield replace(self.other, batch=batch, context=context)


def _placed(
    subject: str | nn.Module | Callable[[], Any],
    target: str | None,
    device_map: str | Mapping[str, str] | None,
    dtype: str | torch.dtype | None,
    asked: _Asked,
    source_on: Callable[[Topology, str | Mapping[str, str] | None], SourcePlan],
) -> tuple[SourcePlan, str | None]:
    """Return what plans the source where its modules are, and a line about a placement that was chosen."""
    topology = Topology.parse(target or "cpu")
    if device_map != AUTO:
        return source_on(topology, device_map), None
    largest = max(asked.points(), key=lambda request: (request.batch or 0, request.context or 0))
    made: dict[str, SourcePlan] = {}

    def planned(entries: Mapping[str, str]) -> PlannedPoint:
        source = made[str(entries)] = source_on(topology, entries)
        return source.at(source.completed(largest))

    found = automatic_placement(subject, topology, dtype, planned)
    return made[str(found.entries)], f"--device-map auto: {found.summary}"


def _several(option: str, size: int | Sequence[int] | None) -> tuple[int | None, ...]:
    sizes = (size,) if size is None or isinstance(size, int) else tuple(size) or (None,)
    for number in sizes:
        if number is not None and number < 1:
            raise InvalidValue(f"{option} {number}: give a number of 1 or more")
    return sizes


def _is_archive(subject: Any) -> bool:
    return isinstance(subject, str) and (subject.endswith(".pt2") or Path(subject).is_file())


def _of_program(
    subject: ExportedProgram | Path | Any,
    asked: _Asked,
    target: str | None,
    method: str | None,
    *,
    has_aoti: bool,
) -> PlanReport:
    is_program = isinstance(subject, ExportedProgram)
    program = subject if isinstance(subject, ExportedProgram) else load(str(subject), method=method)
    facts = facts_of(program)
    topology = Topology.parse(target or facts.topology or "cpu")
    with torch_logs_silenced(), emulate(topology):
        planned = PlannedProgram.of(program, topology, has_aoti=has_aoti)
        points = tuple(planned.at(request) for request in asked.points())
        first = next(asked.points())
        found = tuple(greatest(planned, role, first) for role in asked.maximum)
        steps = tuple(planned.timeline(first)) if asked.has_timeline else ()
        modules = planned.modules(first) if asked.has_modules else ()
    return PlanReport(
        subject=(facts.source or "program") if is_program else str(subject),
        target=topology.canonical,
        device_map=None,
        workload=None,
        execution=_execution(points),
        dtype=planned.dtype,
        points=points,
        greatest=found,
        timeline=steps,
        modules=modules,
        left_out=planned.left_out,
        versions=_versions(),
    )


def _of_source(
    planned: SourcePlan, where: str | None, asked: _Asked, *, execution: str | None = None
) -> PlanReport:
    """Return the report of a source; `where` says which placement was chosen for it."""
    requests = [planned.completed(request) for request in asked.points()]
    points = tuple(planned.at(request) for request in requests)
    placed = [] if where is None else [where]
    defaults = _defaults(next(asked.points()), requests[0])
    found: tuple[Greatest, ...] = ()
    modules: tuple[PlannedModule, ...] = ()
    if isinstance(planned, SourcePrograms):
        found = tuple(_greatest(planned, role, requests[0]) for role in asked.maximum)
        modules = planned.program_at(requests[0]).modules(requests[0]) if asked.has_modules else ()
    return PlanReport(
        subject=planned.source.spec,
        target=planned.given.topology.canonical,
        device_map=AUTO if where else planned.given.placement,
        workload=planned.workload,
        execution=execution or _execution(points),
        dtype=planned.dtype(requests[0]),
        points=points,
        greatest=found,
        timeline=tuple(planned.timeline(requests[0])) if asked.has_timeline else (),
        modules=modules,
        left_out=tuple(dict.fromkeys(planned.left_out_at(requests[0]))),
        assumptions=tuple(dict.fromkeys((*planned.assumptions, *defaults, *placed))),
        versions=_versions(),
    )


def _refuse_accelerators(target: str | None) -> None:
    """Refuse before the export what `--aoti` cannot plan after it."""
    from fakexport.deploy.aoti import why_unplanned  # It imports the compiler.

    for device in Topology.parse(target or "cpu").accelerators:
        raise InvalidValue(f"--aoti: {why_unplanned(device.name)}")


def _execution(points: Sequence[PlannedPoint]) -> str:
    """Return what is meant by running the model: every execution that has a column at some of the sizes."""
    named = {"module()": PROGRAM, "eager mode": EAGER, "AOTInductor": AOTI}
    found = {name for point in points for name, _ in point.executions}
    return " and ".join(text for name, text in named.items() if name in found)


def _autocast_dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    dtype = parse_dtype(name)
    if dtype not in (torch.bfloat16, torch.float16):
        raise InvalidValue(f"--autocast {name}: write bfloat16 or float16")
    return dtype


def _defaults(asked: SizeRequest, completed: SizeRequest) -> list[str]:
    """Return a sentence for each size that was not asked for."""
    sizes = {"batch": (asked.batch, completed.batch), "context": (asked.context, completed.context)}
    return [
        f"--{role} was not given: {size:,} is assumed"
        for role, (given, size) in sizes.items()
        if given is None and size is not None
    ]


def _greatest(programs: SourcePrograms, role: str, request: SizeRequest) -> Greatest:
    """Return the largest size, for which the size must vary: a batch of 1 is a program of its own."""
    free = request if role == "context" else replace(request, batch=2)
    found = greatest(programs.program(free), role, free)
    if role == "context" or found.size is not None or not programs.is_derived:
        return found
    single = programs.at(replace(request, batch=1))
    if single.fit not in ("fits", "may not fit"):
        return found
    return replace(found, size=1, fits_surely=1 if single.fit == "fits" else None)


def _versions() -> dict[str, str]:
    return {"fakexport": __version__, "torch": str(torch.__version__), **loaded_libraries()}


# Over all devices of a topology.
_OVER_ALL = ("tp", "tp,ep")


def check_parallel(
    parallel: str,
    device_map: str | Mapping[str, str] | None,
    workload: WorkloadName,
    *,
    is_smallest: bool,
    is_eager: bool,
) -> None:
    """Refuse what does not go with parallelism."""
    if is_eager:
        raise InvalidValue("--parallel does not apply to --eager")
    if workload == "train":
        raise InvalidValue("--parallel does not apply to --workload train")
    if parallel not in _OVER_ALL:
        Degrees.parse(parallel)
        if is_smallest:
            raise InvalidValue(f"--smallest chooses the degree: write --parallel tp, not {parallel}")
    refuse_with_parallel(Degrees(2), device_map=device_map)


def degrees_on(topology: Topology, parallel: str | None) -> Degrees | None:
    """Return the degrees on some devices; `tp` is over all of them, and one device holds the whole model."""
    if parallel is None:
        return None
    count = len(topology.accelerators)
    if parallel in _OVER_ALL:
        return Degrees(count, count if "ep" in parallel else 1) if count > 1 else None
    degrees = Degrees.parse(parallel)
    degrees.check_devices(topology)
    return degrees
