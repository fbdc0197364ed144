"""What `fakexport plan` found: bytes per device at each size that was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fakexport.report.planned_costs import PlannedCosts, PlannedModule

Fit = Literal["fits", "may not fit", "does not fit", "unknown"]


@dataclass(frozen=True)
class Interval:
    """A number of bytes that is known within bounds."""

    lower: int
    upper: int

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lower + other.lower, self.upper + other.upper)


@dataclass(frozen=True)
class PlannedTensor:
    """Memory that is held at a peak: a tensor, or several that differ in their place only.

    Args:
        name: The node, input, weight or constant; `layers.*.weight` for several.
        count: How many they are.
        kind: `weight`, `constant`, `state`, `gradient`, `optimizer`, `input`, `activation`, `temporary` or
            `output`.
        bytes: What all of them take.
        shape: Sizes of one at the point; None for an operator's own memory.
        dtype: `bfloat16`; "" for an operator's own memory.
        module_path: Path of the module that made it; "" for the root and for what the caller holds.
        line: The user's line that made it, `model.py:12`; None if it is not known.
    """

    name: str
    count: int
    kind: str
    bytes: int
    shape: tuple[int, ...] | None
    dtype: str
    module_path: str
    line: str | None


@dataclass(frozen=True)
class PlannedPeak:
    """Where a device holds the most.

    Args:
        node: Name of the node in the program; of training, `forward`, `backward` or `optimizer`.
        operator: `aten.mul.Tensor`.
        module_path: Path of the module; "" for the root.
        line: The user's line, `model.py:12`; None if it is not known.
    """

    node: str
    operator: str
    module_path: str
    line: str | None


@dataclass(frozen=True)
class PlannedOverhead:
    """What a process takes on a device and no tensor of the program shows.

    Args:
        name: `CUDA context`, `cuBLAS workspace`, `allocator rounding and fragmentation`.
        bytes: Within bounds.
        is_allocated: Whether `torch.cuda.max_memory_reserved` includes it.
        source: Where the figure is from.
    """

    name: str
    bytes: Interval
    is_allocated: bool
    source: str


@dataclass(frozen=True)
class PlannedDevice:
    """One device at one point.

    Args:
        name: `cuda:0`.
        profile: Name of its profile, `H100-80GB`.
        memory_bytes: All of its memory; None if the profile has none (the host).
        weights, constants, state, inputs: Bytes held all the time, or at the peak for state that the program
            makes; state is a cache, a recurrent state or a buffer that is written.
        gradients, optimizer: Of training: bytes at the peak of gradients, and of the optimizer's state.
        activations: Bytes of values in between and of outputs at the peak.
        temporaries: Bytes of operators' own memory at the peak; of training also gradients of activations,
            and what the optimizer computes with.
        state_after: Bytes of the state when the program has run.
        allocated_bytes: Tensors as the allocator of the device rounds them, and workspaces:
            `torch.cuda.max_memory_allocated`.
        overheads: What no tensor shows.
        peak: Where the most is held; None if the program takes nothing on this device.
        largest: The largest that is held there, greatest first.
    """

    name: str
    profile: str
    memory_bytes: int | None
    weights: int
    constants: int
    state: int
    gradients: int
    optimizer: int
    inputs: int
    activations: int
    temporaries: int
    state_after: int
    allocated_bytes: int
    overheads: tuple[PlannedOverhead, ...]
    peak: PlannedPeak | None
    largest: tuple[PlannedTensor, ...]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of tensors at the peak."""
        trained = self.gradients + self.optimizer
        run = self.activations + self.temporaries
        return self.weights + self.constants + self.state + trained + self.inputs + run

    @property
    def total(self) -> Interval:
        """Bytes of the device that are taken at the peak."""
        total = Interval(self.tensor_bytes, self.tensor_bytes)
        for overhead in self.overheads:
            total += overhead.bytes
        return total

    @property
    def headroom(self) -> Interval | None:
        """Bytes that stay free; negative where they are missing. None if the memory is not known."""
        if self.memory_bytes is None:
            return None
        total = self.total
        return Interval(self.memory_bytes - total.upper, self.memory_bytes - total.lower)

    @property
    def fit(self) -> Fit:
        """Whether the device has enough memory, within what is known."""
        headroom = self.headroom
        if headroom is None:
            return "unknown"
        if headroom.lower >= 0:
            return "fits"
        return "may not fit" if headroom.upper >= 0 else "does not fit"


def worst_fit(devices: Iterable[PlannedDevice]) -> Fit:
    """Return whether something fits on all devices."""
    order: tuple[Fit, ...] = ("does not fit", "may not fit", "fits")
    found = {device.fit for device in devices}
    return next((fit for fit in order if fit in found), "unknown")


@dataclass(frozen=True)
class PlannedStep:
    """A node that takes or gives back memory, and what is held when it holds the most.

    Args:
        device: `cuda:0`.
        peak: The node, with its place.
        bytes_by_kind: Kind of storage (`weight`, `activation`) -> bytes.
        is_eager: Whether it is an operator of eager mode, and not a node of the program.
    """

    device: str
    peak: PlannedPeak
    bytes_by_kind: Mapping[str, int]
    is_eager: bool = False


@dataclass(frozen=True)
class PlannedPoint:
    """All devices at one choice of sizes.

    Args:
        batch: None if no input has a batch.
        context: Tokens; None if no input is text.
        as_in_example: Input dimensions that were not asked for, with the size that was assumed.
        devices: In the order of their names. Empty where there is no program at these sizes, only eager mode.
        eager: The same devices in eager mode; empty unless that was asked for.
        aoti: The same devices with the buffers that AOTInductor plans; empty unless that was asked for.
        windows: Input dimensions that are taken to keep a window, as in the example inputs -> their size.
        growth: `batch` and `context`, as far as they vary -> bytes that one sequence or one token more adds
            to the tensors of the fullest device.
        costs: What one call costs at least; None where only what fits was asked.
    """

    batch: int | None
    context: int | None
    as_in_example: Mapping[str, int]
    devices: tuple[PlannedDevice, ...]
    eager: tuple[PlannedDevice, ...] = ()
    aoti: tuple[PlannedDevice, ...] = ()
    windows: Mapping[str, int] = field(default_factory=dict)
    growth: Mapping[str, int] = field(default_factory=dict)
    costs: PlannedCosts | None = None

    @property
    def columns(self) -> tuple[PlannedDevice, ...]:
        """The devices as the program takes them, then as eager mode does, and AOTInductor."""
        return tuple(device for _, devices in self.executions for device in devices)

    @property
    def executions(self) -> tuple[tuple[str, tuple[PlannedDevice, ...]], ...]:
        """The devices of each execution that was planned, by its name."""
        named = (("module()", self.devices), ("eager mode", self.eager), ("AOTInductor", self.aoti))
        return tuple((name, devices) for name, devices in named if devices)

    @property
    def fit(self) -> Fit:
        """The worst of the devices in all executions."""
        return worst_fit(self.columns)


@dataclass(frozen=True)
class Greatest:
    """The largest size that fits.

    Args:
        role: `batch` or `context`.
        size: The largest; None if not even the smallest fits.
        fits_surely: Up to which size it fits whatever the overheads are; None if none does.
        limit: Why it is not larger: `memory`, or `range` where the program accepts no more.
        device: The device that is full then; None for `range`.
    """

    role: str
    size: int | None
    fits_surely: int | None
    limit: Literal["memory", "range"]
    device: str | None


@dataclass(frozen=True)
class Machine:
    """How many devices of one model are enough.

    Args:
        profile: Name of the profile.
        count: The smallest number of those tried that is enough; None if none was.
        device_map: The placement; None for a single device.
        headroom: Bytes that stay free on the fullest of them; None if none was enough.
    """

    profile: str
    count: int | None
    device_map: str | None
    headroom: Interval | None


@dataclass(frozen=True)
class PlanReport:
    """What a model needs on its devices.

    Args:
        subject: The source or the archive.
        target: The topology, as text.
        device_map: Placement, as text; None for a single device.
        workload: `forward`, `prefill`, `decode` or `train`; None for an archive, whose inputs say what it is.
        execution: What runs: `the program's module()`, `eager mode`, both, or two steps of training.
        dtype: Dtype of most of the weights.
        points: One per size that was asked for.
        greatest: Answers to `--max`.
        timeline: What is held on each device, node by node, at the first point; empty unless asked for.
        machines: Answers to `--smallest`, those that are enough first, by the memory of all their devices.
        modules: What each module computes and reads at the first point; empty unless asked for.
        left_out: What the figures leave out, one sentence each.
        assumptions: What was assumed about the source, one sentence each.
        versions: The packages that decided the figures.
    """

    subject: str
    target: str
    device_map: str | None
    workload: str | None
    execution: str
    dtype: str
    points: tuple[PlannedPoint, ...]
    greatest: tuple[Greatest, ...] = ()
    timeline: tuple[PlannedStep, ...] = ()
    machines: tuple[Machine, ...] = ()
    modules: tuple[PlannedModule, ...] = ()
    left_out: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from .page.plan_page import plan_document
        from .page.rendering import render_in_notebook

        return render_in_notebook(plan_document(self))

    def steps_on(self, device: str, *, is_eager: bool) -> list[PlannedStep]:
        """Return the timeline of one device, of the program or of eager mode."""
        return [step for step in self.timeline if (step.device, step.is_eager) == (device, is_eager)]
