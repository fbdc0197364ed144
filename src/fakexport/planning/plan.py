"""Plan the memory that a model or an archive needs at each requested size."""

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
from fakexport.archive import load, load_bundle, method_manifests
from fakexport.emulation.devices import Topology, emulate
from fakexport.emulation.fake import DeviceMap
from fakexport.error import InvalidValue
from fakexport.exporting.capture import Request, loaded_libraries
from fakexport.exporting.program import facts_of
from fakexport.files.documents import are_divided
from fakexport.models.parallel import Degrees, refuse_with_parallel
from fakexport.models.sources import WorkloadName, parse_dtype
from fakexport.planning.automatic_placement import AUTO, automatic_placement
from fakexport.planning.memory import OptimizerName, SizeRequest, parse_bounds, parse_dims
from fakexport.planning.planned_ranges import PlannedRanges
from fakexport.planning.point import PlannedProgram
from fakexport.planning.search import greatest_of_source, smallest_machines
from fakexport.planning.source_programs import PlanSource, SourcePrograms
from fakexport.planning.source_runs import SourceColumns, SourceRuns, Training
from fakexport.report import Greatest, PlannedModule, PlannedPoint, PlanReport, Progress

PROGRAM = "the program's module()"
EAGER = "eager mode"
AOTI = "the program that AOTInductor compiles for the CPU"
SourcePlan = SourcePrograms | SourceRuns


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
    trust_remote_code: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> PlanReport:
    """Return the memory that a model needs on each device, computed from its exported program.

    Each storage of the program counts from the node that allocates it to the last node that uses it. No
    weights are loaded and no device is needed.

    Args:
        subject: A source as for `check`, an archive (`model.pt2`), or an exported program.
        target: The devices, such as `"2xH100"`. Default: the devices of the archive or program; cpu for a
            source.
        device_map, dtype: As for `check`; for sources only. `"auto"` uses accelerate's placement, and leaves
            enough memory for a call at the largest requested size.
        batch: Number of sequences or images, as one value or several. Default: 1 for `hf:` models, otherwise
            the size in the example inputs.
        context: Number of tokens that the model attends to, including those of a cache. Default: for `hf:`
            models, 4,096 or the model's maximum, whichever is less; otherwise the size in the example inputs.
        workload: For `hf:` models: `"forward"` without a cache, `"prefill"`, which returns a cache, or
            `"decode"`, which reads one token and a cache. For any model: `"train"`, two steps of a forward
            pass, a backward pass and an optimizer step.
        optimizer: For training: `"adamw"` (default), `"adam"` or `"sgd"`, with torch's defaults.
        checkpointing: For training: recompute the activations of a model's blocks in the backward pass.
        autocast: For training: `"bfloat16"` or `"float16"` for a forward pass in mixed precision.
        sizes: Other dimensions of inputs, such as `"pixel_values.2=448"`.
        bounds: Maximums of sizes that are known only at run time, such as `"u0=4096"`.
        maximum: `"batch"`, `"context"`, or both: find the largest value that fits.
        smallest: Whether to find the smallest sufficient number of devices of each CUDA profile at the first
            requested size. The model is exported for 1, 2, 4, 8 and 16 devices until it fits.
        timeline: Whether to return the memory node by node at the first requested size.
        by_module: Whether to return FLOPs and bytes read per module at the first requested size.
        eager: Whether to also run the model's own code on fake tensors, which includes memory that Python
            frames keep alive. The figures are reported next to those of the program. For forward calls only.
        aoti: Whether to also plan the buffers of the program that AOTInductor compiles for the CPU. The
            figures are reported next to those of the program. Nothing is compiled.
        method: Program to use from a bundle.
        parallel: As for `check`: plan the memory of one rank. `"tp"` or `"tp,ep"` shards the model over all
            devices of the target; with `smallest`, over each number of devices.
        assume: Values of data-dependent conditions and integers, as for `check`. Only for the program of a
            source.
        trust_remote_code: As for `check`.
        on_progress: Called before each export.

    Returns:
        One point per batch and context, in the requested order.

    Raises:
        ValueError: Invalid usage, an unknown source or target, or sizes that the program does not accept. The
            text is one line.
        PlanError: The model does not export; `check` shows why.

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
        raise InvalidValue("--optimizer, --checkpointing and --autocast apply only to --workload train")
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
        raise InvalidValue(
            "--max, --smallest, --parallel and --workload train cannot be combined with --aoti"
        )
    if assume and (is_training or eager):
        raise InvalidValue(
            "--assume does not apply to --workload train or --eager, because they run the model's code"
        )
    if eager and workload != "forward":
        raise InvalidValue(f"--eager does not apply to --workload {workload}")
    if aoti:
        _refuse_accelerators(target)
    request = Request(
        source=subject,
        target=target or "cpu",
        device_map=device_map,
        dynamic_shapes="auto",
        assume=tuple(assume),
        trust_remote_code=trust_remote_code,
    )
    chosen = None if dtype is None else parse_dtype(dtype)
    if parallel is not None:
        check_parallel(parallel, device_map, workload, is_smallest=smallest, is_eager=eager)

    here = Path.cwd()

    def source_on(topology: Topology, placement: str | Mapping[str, str] | None) -> PlanSource:
        announce = on_progress or (lambda progress: None)
        placed = None if placement is None else DeviceMap.parse(placement)
        degrees = degrees_on(topology, parallel)
        own = request if degrees is None else replace(request, parallel=degrees.canonical)
        return PlanSource(own, topology, placed, chosen, here, announce)

    def programs_on(topology: Topology, placement: str | Mapping[str, str] | None) -> SourcePrograms:
        return SourcePrograms(source_on(topology, placement), workload, has_aoti=aoti)

    placed = functools.partial(_placed, request, asked, chosen)
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
    request: Request,
    asked: _Asked,
    dtype: torch.dtype | None,
    source_on: Callable[[Topology, str | Mapping[str, str] | None], SourcePlan],
) -> tuple[SourcePlan, str | None]:
    """Return the planned source with its modules placed, and a sentence about an automatic placement."""
    topology = Topology.parse(request.target)
    if request.device_map != AUTO:
        return source_on(topology, request.device_map), None
    largest = max(asked.points(), key=lambda sizes: (sizes.batch or 0, sizes.context or 0))
    made: dict[str, SourcePlan] = {}

    def planned(entries: Mapping[str, str]) -> PlannedPoint:
        source = made[str(entries)] = source_on(topology, entries)
        return source.at(source.completed(largest))

    found = automatic_placement(request.read(), topology, planned, dtype=dtype)
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
    if isinstance(subject, ExportedProgram):
        programs = [subject]
    elif method is None and are_divided(each.sizes for each in method_manifests(str(subject)).values()):
        programs = list(load_bundle(str(subject)).values())
    else:
        programs = [load(str(subject), method=method)]
    facts = facts_of(programs[0])
    topology = Topology.parse(target or facts.topology or "cpu")
    with torch_logs_silenced(), emulate(topology):
        every = tuple(PlannedProgram.of(each, topology, has_aoti=has_aoti) for each in programs)
        ranges = PlannedRanges(every)
        points = tuple(ranges.program_at(request).at(request) for request in asked.points())
        first = next(asked.points())
        planned = ranges.program_at(first)
        found = tuple(ranges.greatest(role, first) for role in asked.maximum)
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
        left_out=tuple(dict.fromkeys(line for each in every for line in each.left_out)),
        versions=_versions(),
    )


def _of_source(
    planned: SourcePlan, where: str | None, asked: _Asked, *, execution: str | None = None
) -> PlanReport:
    requests = [planned.completed(request) for request in asked.points()]
    points = tuple(planned.at(request) for request in requests)
    placed = [] if where is None else [where]
    defaults = _defaults(next(asked.points()), requests[0])
    found: tuple[Greatest, ...] = ()
    modules: tuple[PlannedModule, ...] = ()
    if isinstance(planned, SourcePrograms):
        found = tuple(greatest_of_source(planned, role, requests[0]) for role in asked.maximum)
        modules = planned.program_at(requests[0]).modules(requests[0]) if asked.has_modules else ()
    return PlanReport(
        subject=planned.source.spec,
        target=planned.given.topology.canonical,
        device_map=None if (placement := planned.given.request.device_map) is None else str(placement),
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
    """Reject devices that `--aoti` does not support, before the model is exported."""
    from fakexport.planning.planned_buffers import why_unplanned  # Importing it imports the compiler.

    for device in Topology.parse(target or "cpu").accelerators:
        raise InvalidValue(f"--aoti: {why_unplanned(device.name)}")


def _execution(points: Sequence[PlannedPoint]) -> str:
    """Return a text that lists how the model is run: the kinds of execution with a column at any size."""
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
    sizes = {"batch": (asked.batch, completed.batch), "context": (asked.context, completed.context)}
    return [
        f"--{role} was not given: {size:,} is assumed"
        for role, (given, size) in sizes.items()
        if given is None and size is not None
    ]


def _versions() -> dict[str, str]:
    return {"fakexport": __version__, "torch": str(torch.__version__), **loaded_libraries()}


# Degrees that span all devices of a topology.
_OVER_ALL = ("tp", "tp,ep")


def check_parallel(
    parallel: str,
    device_map: str | Mapping[str, str] | None,
    workload: WorkloadName,
    *,
    is_smallest: bool,
    is_eager: bool,
) -> None:
    """Reject options that cannot be combined with `--parallel`."""
    if is_eager:
        raise InvalidValue("--parallel does not apply to --eager")
    if workload == "train":
        raise InvalidValue("--parallel does not apply to --workload train")
    if parallel not in _OVER_ALL:
        Degrees.parse(parallel)
        if is_smallest:
            raise InvalidValue(f"--smallest chooses the number of ranks: write --parallel tp, not {parallel}")
    refuse_with_parallel(Degrees(2), device_map=device_map)


def degrees_on(topology: Topology, parallel: str | None) -> Degrees | None:
    """Return the degrees of parallelism on a topology, or None if the model is not sharded."""
    if parallel is None:
        return None
    count = len(topology.accelerators)
    if parallel in _OVER_ALL:
        return Degrees(count, count if "ep" in parallel else 1) if count > 1 else None
    degrees = Degrees.parse(parallel)
    degrees.check_devices(topology)
    return degrees
