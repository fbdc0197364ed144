"""One program at one choice of sizes, device by device."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.costs import CostsAt, ProgramCosts, program_costs
from fakexport.devices import Topology, emulate
from fakexport.diagnostics import Span
from fakexport.error import InvalidValue
from fakexport.memory import (
    ChosenSizes,
    Liveness,
    LiveStorage,
    ProgramSizes,
    SizeRequest,
    Sizes,
    Step,
    allocator_overhead,
    allocator_peak,
    liveness,
    overheads,
    sizes_at,
)
from fakexport.planning.point_costs import planned_costs, planned_modules
from fakexport.program import SourcePaths, star, star_common
from fakexport.report import (
    Interval,
    PlannedDevice,
    PlannedModule,
    PlannedOverhead,
    PlannedPeak,
    PlannedPoint,
    PlannedStep,
    PlannedTensor,
)

_PRODUCTS = re.compile(r"\b(?:linear|matmul|\w*mm|\w*conv\w*|einsum|bilinear|\w*attention\w*)\b")
_FOLDED = 1000
_LISTED = 10
NOT_COUNTED = "the buffers that AOTInductor plans when it compiles the program (--aoti counts them)"
_PATHS = SourcePaths(None)


@dataclass(frozen=True)
class PlannedProgram:
    """A program whose memory can be told at any size that it accepts.

    Args:
        topology: Its devices.
        sizes: The sizes that may be chosen.
        liveness: Its storages and when they are held.
        multiplies: Devices on which it multiplies matrices.
        program: What all of this is read off.
        aoti: The storages of the program that AOTInductor compiles; None: they are not planned.
    """

    topology: Topology
    sizes: ProgramSizes
    liveness: Liveness
    multiplies: frozenset[str]
    program: ExportedProgram = field(repr=False)
    aoti: Liveness | None = None

    @classmethod
    def of(cls, program: ExportedProgram, topology: Topology, *, has_aoti: bool = False) -> PlannedProgram:
        """Read a program.

        Args:
            program: Not changed.
            topology: Its devices.
            has_aoti: Whether to plan the buffers of AOTInductor too.
        Raises:
            ValueError: AOTInductor's cannot be planned. One line.
        """
        found = liveness(program, topology=topology)
        aoti = _compiled(program) if has_aoti else None
        needed = {*found.symbols, *(aoti.symbols if aoti else ())}
        sizes = ProgramSizes(program, needed=sorted(needed))
        return cls(topology, sizes, found, multiplying(found), program, aoti)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the figures do not count, or not surely, one sentence each."""
        aoti = self.aoti.left_out if self.aoti else (NOT_COUNTED,)
        return (*self.liveness.left_out, *unmodeled_lines(self.liveness), *aoti)

    @functools.cached_property
    def costs(self) -> ProgramCosts:
        """What one call computes, reads and sends: read when it is shown, and by no search."""
        with torch_logs_silenced(), emulate(self.topology):
            return program_costs(self.program, self.liveness)

    @property
    def dtype(self) -> str:
        """The dtype of most of the weights; `no weights`."""
        return dtype_of_weights(self.liveness)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that hold anything; the host only where the program has nothing elsewhere."""
        return planned_names(self.liveness)

    def at(self, request: SizeRequest) -> PlannedPoint:
        """Return the plan at the sizes that are asked for.

        Raises:
            ValueError: the program does not accept the sizes. One line.
        """
        chosen = self._chosen_with_costs(request)
        sizes = sizes_at(self.liveness, chosen.values)
        return replace(
            self._point(chosen, sizes, largest=_LISTED),
            aoti=self._aoti_devices(chosen),
            growth=dict(self._growth(request, chosen, sizes)),
            costs=planned_costs(self._costs(sizes, chosen), self.topology, self.sizes, chosen),
        )

    def totals_at(self, request: SizeRequest) -> PlannedPoint:
        """Return what the devices hold at the sizes that are asked for, and nothing else: for searches.

        Raises:
            ValueError: as for `at`.
        """
        chosen = self.sizes.chosen(request)
        return self._point(chosen, sizes_at(self.liveness, chosen.values), largest=0)

    def _point(self, chosen: ChosenSizes, sizes: Sizes, *, largest: int) -> PlannedPoint:
        return PlannedPoint(
            batch=chosen.batch,
            context=chosen.context,
            as_in_example={str(dim): size for dim, size in chosen.as_in_example},
            windows={str(dim): size for dim, size in chosen.windows},
            devices=planned_devices(sizes, self.topology, chosen, self.multiplies, largest=largest),
        )

    def _aoti_devices(self, chosen: ChosenSizes) -> tuple[PlannedDevice, ...]:
        if self.aoti is None:
            return ()
        sizes = sizes_at(self.aoti, chosen.values)
        return planned_devices(sizes, self.topology, chosen, frozenset(), largest=_LISTED)

    def modules(self, request: SizeRequest) -> tuple[PlannedModule, ...]:
        """Return what each module computes and reads, at the sizes that are asked for."""
        chosen = self._chosen_with_costs(request)
        return planned_modules(self._costs(sizes_at(self.liveness, chosen.values), chosen))

    def _chosen_with_costs(self, request: SizeRequest) -> ChosenSizes:
        """Return the sizes, those included on which no tensor depends that is held."""
        return self.sizes.needing(self.costs.symbols).chosen(request)

    def _costs(self, sizes: Sizes, chosen: ChosenSizes) -> CostsAt:
        return CostsAt(self.costs, sizes, chosen.values)

    def timeline(self, request: SizeRequest) -> Iterator[PlannedStep]:
        """Yield what each device holds, node by node, at the sizes that are asked for."""
        sizes = sizes_at(self.liveness, self.sizes.chosen(request).values)
        yield from planned_steps(sizes)

    def _growth(self, request: SizeRequest, chosen: ChosenSizes, sizes: Sizes) -> Iterator[tuple[str, int]]:
        """Yield how much more the fullest device holds for one sequence and for one token more."""
        held = {device: sizes.peak(device, largest=0).bytes for device in self.devices}
        fullest = max(held, key=held.__getitem__, default=None)
        if fullest is None:
            return
        larger = {
            "batch": replace(request, batch=(chosen.batch or 0) + 1),
            "context": replace(request, context=(chosen.context or 0) + 1),
        }
        for role, asked in larger.items():
            if (chosen.batch if role == "batch" else chosen.context) is None:
                continue
            try:
                values = self.sizes.chosen(asked).values
            except InvalidValue:  # Fixed, or the most that the program accepts.
                continue
            more = sizes_at(self.liveness, values).peak(fullest, largest=0).bytes
            yield role, more - held[fullest]


def _compiled(program: ExportedProgram) -> Liveness:
    """Return the storages of the program that AOTInductor compiles."""
    from fakexport.deploy import CompileFailure, DeployError
    from fakexport.deploy.aoti import planned_buffers  # It imports the compiler.

    try:
        return planned_buffers(program)
    except (DeployError, CompileFailure) as error:
        raise InvalidValue(f"--aoti: {error}") from error


def dtype_of_weights(found: Liveness) -> str:
    """Return the dtype of most of the weights; `no weights`."""
    taken = Counter[str]()
    for storage in found.storages[: found.held]:
        if storage.kind == "weight":
            taken[storage.dtype] += int(storage.bytes)
    return taken.most_common(1)[0][0] if taken else "no weights"


def planned_names(found: Liveness) -> tuple[str, ...]:
    """Return the devices that hold anything; the host only where nothing is held elsewhere."""
    return tuple(device for device in found.devices if device != "cpu") or found.devices


def planned_devices(
    sizes: Sizes, topology: Topology, chosen: ChosenSizes, multiplies: frozenset[str], *, largest: int
) -> tuple[PlannedDevice, ...]:
    """Return what each device holds at its peak."""
    names = planned_names(sizes.liveness)
    return tuple(_device(name, sizes, topology, chosen, name in multiplies, largest) for name in names)


def planned_steps(sizes: Sizes) -> Iterator[PlannedStep]:
    """Yield what each device holds, step by step."""
    for device in planned_names(sizes.liveness):
        for step, held in sizes.fullest_by_step(device):
            yield PlannedStep(device, _peak(step), {kind: size for kind, size in held.items() if size})


def _device(
    name: str, sizes: Sizes, topology: Topology, chosen: ChosenSizes, multiplies: bool, largest: int
) -> PlannedDevice:
    peak = sizes.peak(name, largest=largest * _FOLDED)
    profile = topology.device(name).profile
    by_kind = peak.bytes_by_kind
    around = overheads(profile, multiplies=multiplies, communicates=sizes.liveness.has_collectives)
    workspace = sum(overhead.lower for overhead in around if overhead.is_allocated)
    allocated = peak.bytes + workspace
    if profile.device_type == "cuda":
        default, growing = (
            allocator_peak(sizes, name, expandable_segments=grows, workspace_bytes=workspace)
            for grows in (False, True)
        )
        allocated = default.allocated_bytes
        around = (allocator_overhead(peak, default, growing, workspace_bytes=workspace), *around)
    return PlannedDevice(
        name=name,
        profile=profile.name,
        memory_bytes=profile.memory_bytes,
        weights=by_kind.get("weight", 0),
        constants=by_kind.get("constant", 0),
        state=by_kind.get("state", 0),
        gradients=by_kind.get("gradient", 0),
        optimizer=by_kind.get("optimizer", 0),
        inputs=by_kind.get("input", 0),
        activations=by_kind.get("activation", 0) + by_kind.get("output", 0),
        temporaries=by_kind.get("temporary", 0),
        state_after=sizes.state_after(name),
        allocated_bytes=allocated,
        overheads=tuple(
            PlannedOverhead(o.name, Interval(o.lower, o.upper), o.is_allocated, o.source) for o in around
        ),
        peak=None if peak.step is None else _peak(peak.step),
        largest=tuple(_folded(peak.largest, chosen, largest)),
    )


def multiplying(found: Liveness) -> frozenset[str]:
    """Return the devices on which something multiplies matrices: cuBLAS gets a workspace there."""
    taken = (
        (found.steps[step].operator, found.storages[event]) for step, event in found.events if event >= 0
    )
    return frozenset(storage.device for operator, storage in taken if _PRODUCTS.search(operator))


def _peak(step: Step) -> PlannedPeak:
    return PlannedPeak(step.name, step.operator, step.module_path, _line(step.span))


def _folded(found: Sequence[LiveStorage], chosen: ChosenSizes, most: int) -> list[PlannedTensor]:
    """Return the largest groups of storages that are alike: of one line in equal blocks, for example."""
    groups: dict[tuple[object, ...], list[LiveStorage]] = {}
    for live in found:
        storage = live.storage
        place = star(storage.name) if storage.visit is None else (star(storage.module_path), storage.operator)
        key = (place, storage.kind, live.bytes, _line(storage.span))
        groups.setdefault(key, []).append(live)
    rows = [_tensors(group, chosen) for group in groups.values()]
    return sorted(rows, key=lambda row: -row.bytes)[:most]


def _tensors(group: Sequence[LiveStorage], chosen: ChosenSizes) -> PlannedTensor:
    first = group[0].storage
    paths = [live.storage.module_path if first.visit else live.storage.name for live in group]
    shared = star_common(paths) if len({path.count(".") for path in paths}) == 1 else star(paths[0])
    return PlannedTensor(
        name=first.name if first.visit else shared,
        count=len(group),
        kind=first.kind,
        bytes=sum(live.bytes for live in group),
        shape=None if first.shape is None else tuple(chosen.valued(size) for size in first.shape),
        dtype=first.dtype,
        module_path=shared if first.visit else "",
        line=_line(first.span),
    )


def unmodeled_lines(liveness: Liveness) -> Iterator[str]:
    """Yield a line for each operator whose kernel allocates an unknown amount of memory for itself."""
    places: dict[str, list[str | None]] = {}
    for step, operator in liveness.unmodeled:
        places.setdefault(operator, []).append(_line(liveness.steps[step].span))
    for operator, lines in places.items():
        first = next((f" at {line}" for line in lines if line is not None), "")
        calls = f" ({len(lines)} calls)" if len(lines) > 1 else ""
        yield f"{operator}{first}{calls}: memory that its kernel allocates internally is not modeled"


def _line(span: Span | None) -> str | None:
    return None if span is None else f"{_PATHS.shortened(span.path)}:{span.line}"
