"""Plan one program at one choice of sizes, for each device."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.emulation.devices import Topology, emulate
from fakexport.error import InvalidValue
from fakexport.exporting.program import SourcePaths, star, star_common
from fakexport.planning.costs import CostsAt, ProgramCosts, planned_costs, planned_modules, program_costs
from fakexport.planning.memory import (
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
from fakexport.report import (
    PlannedDevice,
    PlannedModule,
    PlannedPeak,
    PlannedPoint,
    PlannedStep,
    PlannedTensor,
)
from fakexport.rules.diagnostics import Span

_PRODUCTS = re.compile(r"\b(?:linear|matmul|\w*mm|\w*conv\w*|einsum|bilinear|\w*attention\w*)\b")
_FOLDED = 1000
_LISTED = 10
NOT_COUNTED = "the buffers that AOTInductor plans when it compiles the program (--aoti counts them)"
_PATHS = SourcePaths(None)


@dataclass(frozen=True)
class PlannedProgram:
    """A program whose memory can be computed at any size that it accepts.

    Args:
        multiplies: Devices on which the program multiplies matrices.
        aoti: The storages that AOTInductor plans for the compiled program, or None if not requested.
    """

    topology: Topology
    sizes: ProgramSizes
    liveness: Liveness
    multiplies: frozenset[str]
    program: ExportedProgram = field(repr=False)
    aoti: Liveness | None = None

    @classmethod
    def of(cls, program: ExportedProgram, topology: Topology, *, has_aoti: bool = False) -> PlannedProgram:
        """Read a program's sizes and storages; `has_aoti` also plans the buffers of AOTInductor.

        Raises:
            ValueError: The buffers of AOTInductor cannot be planned.
        """
        found = liveness(program, topology=topology)
        aoti = _compiled(program) if has_aoti else None
        needed = {*found.symbols, *(aoti.symbols if aoti else ())}
        sizes = ProgramSizes(program, needed=sorted(needed))
        return cls(topology, sizes, found, multiplying(found), program, aoti)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Memory that the figures omit or may omit, one sentence each."""
        aoti = self.aoti.left_out if self.aoti else (NOT_COUNTED,)
        return (*self.liveness.left_out, *unmodeled_lines(self.liveness), *aoti)

    @functools.cached_property
    def costs(self) -> ProgramCosts:
        """FLOPs, bytes read and bytes sent of one call, which are counted on first use."""
        with torch_logs_silenced(), emulate(self.topology):
            return program_costs(self.program, self.liveness)

    @property
    def dtype(self) -> str:
        return dtype_of_weights(self.liveness)

    def at(self, request: SizeRequest) -> PlannedPoint:
        """Return the plan at the requested sizes. Raises ValueError if the program does not accept them."""
        chosen = self._chosen_with_costs(request)
        sizes = sizes_at(self.liveness, chosen.values)
        aoti: tuple[PlannedDevice, ...] = ()
        if self.aoti is not None:
            compiled = sizes_at(self.aoti, chosen.values)
            aoti = planned_devices(compiled, self.topology, chosen, frozenset(), largest=_LISTED)
        return replace(
            self._point(chosen, sizes, largest=_LISTED),
            aoti=aoti,
            growth=dict(self._growth(request, chosen, sizes)),
            costs=planned_costs(self._costs(sizes, chosen), self.topology, self.sizes, chosen),
        )

    def totals_at(self, request: SizeRequest) -> PlannedPoint:
        """Return a reduced plan for a search, without the growth per size, costs and largest tensors."""
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

    def modules(self, request: SizeRequest) -> tuple[PlannedModule, ...]:
        chosen = self._chosen_with_costs(request)
        return planned_modules(self._costs(sizes_at(self.liveness, chosen.values), chosen))

    def _chosen_with_costs(self, request: SizeRequest) -> ChosenSizes:
        """Return the chosen sizes, including sizes that affect only the costs and not the memory."""
        return self.sizes.needing(self.costs.symbols).chosen(request)

    def _costs(self, sizes: Sizes, chosen: ChosenSizes) -> CostsAt:
        return CostsAt(self.costs, sizes, chosen.values)

    def timeline(self, request: SizeRequest) -> Iterator[PlannedStep]:
        sizes = sizes_at(self.liveness, self.sizes.chosen(request).values)
        yield from planned_steps(sizes)

    def _growth(self, request: SizeRequest, chosen: ChosenSizes, sizes: Sizes) -> Iterator[tuple[str, int]]:
        """Yield how many bytes one more sequence or token adds to the peak of the fullest device."""
        held = {device: sizes.peak(device, largest=0).bytes for device in planned_names(self.liveness)}
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
            except InvalidValue:  # The size is fixed, or already the maximum that the program accepts.
                continue
            more = sizes_at(self.liveness, values).peak(fullest, largest=0).bytes
            yield role, more - held[fullest]


def _compiled(program: ExportedProgram) -> Liveness:
    from fakexport.deploy import CompileFailure, DeployError
    from fakexport.planning.planned_buffers import planned_buffers  # Importing it imports the compiler.

    try:
        return planned_buffers(program)
    except (DeployError, CompileFailure) as error:
        raise InvalidValue(f"--aoti: {error}") from error


def dtype_of_weights(found: Liveness) -> str:
    """Return the dtype with the most bytes of weights, or `no weights`."""
    taken = Counter[str]()
    for storage in found.storages[: found.held]:
        if storage.kind == "weight":
            taken[storage.dtype] += int(storage.bytes)
    return taken.most_common(1)[0][0] if taken else "no weights"


def planned_names(found: Liveness) -> tuple[str, ...]:
    """Return the devices that have storages. `cpu` is included only if there is no other device."""
    return tuple(device for device in found.devices if device != "cpu") or found.devices


def planned_devices(
    sizes: Sizes, topology: Topology, chosen: ChosenSizes, multiplies: frozenset[str], *, largest: int
) -> tuple[PlannedDevice, ...]:
    """Return each device's memory by kind at its peak, and the overheads of the process."""
    names = planned_names(sizes.liveness)
    return tuple(_device(name, sizes, topology, chosen, name in multiplies, largest) for name in names)


def planned_steps(sizes: Sizes) -> Iterator[PlannedStep]:
    """Yield each device's memory by kind, step by step."""
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
    workspace = sum(overhead.bytes.lower for overhead in around if overhead.is_allocated)
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
        overheads=around,
        peak=None if peak.step is None else _peak(peak.step),
        largest=tuple(_folded(peak.largest, chosen, largest)),
    )


def multiplying(found: Liveness) -> frozenset[str]:
    """Return the devices that multiply matrices, which need a cuBLAS workspace."""
    taken = (
        (found.steps[step].operator, found.storages[event]) for step, event in found.events if event >= 0
    )
    return frozenset(storage.device for operator, storage in taken if _PRODUCTS.search(operator))


def _peak(step: Step) -> PlannedPeak:
    return PlannedPeak(step.name, step.operator, step.module_path, _line(step.span))


def _folded(found: Sequence[LiveStorage], chosen: ChosenSizes, most: int) -> list[PlannedTensor]:
    """Group similar storages, such as those of one source line in identical modules; return the largest."""
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
    """Yield a line for each operator whose kernel allocates an unknown amount of memory internally."""
    places: dict[str, list[str | None]] = {}
    for step, operator in liveness.unmodeled:
        places.setdefault(operator, []).append(_line(liveness.steps[step].span))
    for operator, lines in places.items():
        first = next((f" at {line}" for line in lines if line is not None), "")
        calls = f" ({len(lines)} calls)" if len(lines) > 1 else ""
        yield f"{operator}{first}{calls}: memory that its kernel allocates internally is not modeled"


def _line(span: Span | None) -> str | None:
    return None if span is None else f"{_PATHS.shortened(span.path)}:{span.line}"
