"""Results of `fakexport plan`: bytes per device for each requested size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fakexport.report.planned_costs import PlannedCosts, PlannedModule

Fit = Literal["fits", "may not fit", "does not fit", "unknown"]


@dataclass(frozen=True)
class Interval:
    """A number of bytes that is known within bounds.

    Args:
        lower, upper: The bounds, inclusive.
    """

    lower: int
    upper: int

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lower + other.lower, self.upper + other.upper)


@dataclass(frozen=True)
class PlannedTensor:
    """Memory that is in use at a peak: one tensor, or several tensors that differ only in their module.

    Args:
        name: The node, input, weight or constant; `layers.*.weight` for several tensors.
        count: Number of tensors.
        kind: `weight`, `constant`, `state`, `gradient`, `optimizer`, `input`, `activation`, `temporary` or
            `output`.
        bytes: Total size of these tensors.
        shape: Shape of one tensor at this point; None for memory that an operator allocates internally.
        dtype: `bfloat16`; "" for memory that an operator allocates internally.
        module_path: Path of the module that created the tensor; "" for the root, and for the inputs.
        line: The source line that created the tensor, `model.py:12`; None if it is not known.
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
    """The node at which the most memory of a device is in use.

    Args:
        node: Name of the node in the program; for training, `forward`, `backward` or `optimizer`.
        operator: The operator that the node calls: `aten.mul.Tensor`.
        module_path: Path of the module; "" for the root.
        line: The source line, `model.py:12`; None if it is not known.
    """

    node: str
    operator: str
    module_path: str
    line: str | None


@dataclass(frozen=True)
class PlannedOverhead:
    """Device memory that a process uses in addition to the tensors of the program.

    Args:
        name: What uses the memory: `CUDA context`, `cuBLAS workspace`, `allocator rounding and
            fragmentation`.
        bytes: Size, within bounds.
        is_allocated: Whether `torch.cuda.max_memory_reserved` includes it.
        source: Source of the figure.
    """

    name: str
    bytes: Interval
    is_allocated: bool
    source: str


@dataclass(frozen=True)
class PlannedDevice:
    """Memory use of one device for one choice of sizes.

    Args:
        name: `cuda:0`.
        profile: Name of its profile, `H100-80GB`.
        memory_bytes: Total memory; None if the profile does not specify it, as for the host.
        weights, constants, state, inputs: Bytes that are in use during the whole call. State that the program
            creates is counted at the peak. State is a cache, a recurrent state or a buffer that the program
            writes.
        gradients, optimizer: For training: bytes of gradients and of optimizer state at the peak.
        activations: Bytes of intermediate values and outputs at the peak.
        temporaries: Bytes that operators allocate internally at the peak; for training, also gradients of
            activations, and temporaries of the optimizer.
        state_after: Bytes of the state after the call.
        allocated_bytes: Estimate of `torch.cuda.max_memory_allocated`: bytes of workspaces and of tensors,
            whose sizes are rounded up as the device's allocator rounds them.
        overheads: Memory that is used in addition to the tensors.
        peak: The node with the most memory; None if the program uses no memory on this device.
        largest: The largest tensors at the peak, in descending order.
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
        """Bytes that are used on the device at the peak, including overheads."""
        total = Interval(self.tensor_bytes, self.tensor_bytes)
        for overhead in self.overheads:
            total += overhead.bytes
        return total

    @property
    def headroom(self) -> Interval | None:
        """Free bytes at the peak; negative if memory is too small, None if the device's memory is unknown."""
        if self.memory_bytes is None:
            return None
        total = self.total
        return Interval(self.memory_bytes - total.upper, self.memory_bytes - total.lower)

    @property
    def fit(self) -> Fit:
        """Whether the peak fits into the device's memory; `may not fit` if only the lower bound fits."""
        headroom = self.headroom
        if headroom is None:
            return "unknown"
        if headroom.lower >= 0:
            return "fits"
        return "may not fit" if headroom.upper >= 0 else "does not fit"


def worst_fit(devices: Iterable[PlannedDevice]) -> Fit:
    """Return the worst known fit of some devices; `unknown` if no fit is known."""
    order: tuple[Fit, ...] = ("does not fit", "may not fit", "fits")
    found = {device.fit for device in devices}
    return next((fit for fit in order if fit in found), "unknown")


@dataclass(frozen=True)
class PlannedStep:
    """A node that allocates or frees memory, and the most memory that is in use while it runs.

    Args:
        device: `cuda:0`.
        peak: The node, with its operator, module and source line.
        bytes_by_kind: Kind of storage (`weight`, `activation`) -> bytes.
        is_eager: Whether it is an operator of eager mode instead of a node of the program.
    """

    device: str
    peak: PlannedPeak
    bytes_by_kind: Mapping[str, int]
    is_eager: bool = False


@dataclass(frozen=True)
class PlannedPoint:
    """The plan of all devices for one choice of sizes.

    Args:
        batch: Number of sequences or images per call; None if no input has a batch dimension.
        context: Number of tokens that the model attends to; None if no input is text.
        as_in_example: Input dimensions without a requested size -> their size in the example inputs.
        devices: The devices, in the order of their names. Empty if only eager mode was planned at these
            sizes.
        eager: The same devices in eager mode; empty unless requested.
        aoti: The same devices with the buffers that AOTInductor plans; empty unless requested.
        windows: Cache dimensions that are assumed to be a sliding window -> their size in the example inputs.
        growth: `batch` or `context` -> bytes that one more sequence or token adds to the tensors of the
            fullest device. A key is missing if that dimension is not dynamic.
        costs: Lower bounds on the cost of one call; None if they were not computed.
        stage_seconds: Lower bound of the time of each pipeline stage. The stages are rows of `devices`. Empty
            without stages, or if a bound is unknown.
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
    stage_seconds: tuple[float, ...] = ()

    @property
    def idle_shares(self) -> dict[int, float]:
        """Number of microbatches -> share of the time in which the devices wait, on average.

        This holds for GPipe and for 1F1B, if each stage takes its lower bound for each microbatch. Empty
        without pipeline stages or without bounds.
        """
        seconds, stages = self.stage_seconds, len(self.stage_seconds)
        if not any(seconds):
            return {}
        shares = {}
        for count in (1, stages, 4 * stages):
            # The slowest stage works without a pause. The others work at the same time, before and after it.
            total = sum(seconds) + (count - 1) * max(seconds)
            shares[count] = 1 - count * sum(seconds) / (stages * total)
        return shares

    @property
    def replayed(self) -> list[tuple[PlannedDevice, bool]]:
        """Pairs (device, is_eager) of the program and of eager mode."""
        return [*((device, False) for device in self.devices), *((device, True) for device in self.eager)]

    @property
    def columns(self) -> tuple[PlannedDevice, ...]:
        """The devices of all executions: the program, then eager mode, then AOTInductor."""
        return tuple(device for _, devices in self.executions for device in devices)

    @property
    def executions(self) -> tuple[tuple[str, tuple[PlannedDevice, ...]], ...]:
        """Pairs of the name and the devices of each planned execution."""
        named = (("module()", self.devices), ("eager mode", self.eager), ("AOTInductor", self.aoti))
        return tuple((name, devices) for name, devices in named if devices)

    @property
    def fit(self) -> Fit:
        """The worst fit of all devices and executions."""
        return worst_fit(self.columns)


@dataclass(frozen=True)
class Greatest:
    """The largest batch or context that fits.

    Args:
        role: `batch` or `context`.
        size: The largest size; None if not even the smallest fits.
        fits_surely: The largest size that fits even with the largest overheads; None if no size fits.
        limit: Why no larger size is possible: `memory`, or `range` if the program accepts no larger size.
        device: The device that runs out of memory; None for `range`.
    """

    role: str
    size: int | None
    fits_surely: int | None
    limit: Literal["memory", "range"]
    device: str | None


@dataclass(frozen=True)
class Machine:
    """The smallest number of devices of one profile on which the model fits.

    Args:
        profile: Name of the profile.
        count: The smallest tested number on which the model fits; None if it fits on none of them.
        device_map: The placement; None for a single device.
        headroom: Free bytes on the fullest device; None if `count` is None.
    """

    profile: str
    count: int | None
    device_map: str | None
    headroom: Interval | None


@dataclass(frozen=True)
class PlanReport:
    """Memory that a model needs on its devices.

    Args:
        subject: The source or the archive.
        target: The topology, as text.
        device_map: The placement, as text; None for a single device.
        workload: `forward`, `prefill`, `decode` or `train`; None for an archive, whose inputs determine it.
        execution: What runs: `the program's module()`, `eager mode`, both, or two steps of training.
        dtype: Dtype of most weights.
        points: One entry per requested choice of sizes.
        greatest: The results of `--max`.
        timeline: Memory of each device, node by node, at the first point; empty unless requested.
        machines: The results of `--smallest`: first the machines on which the model fits, by total memory.
        modules: FLOPs of each module, and bytes that it reads, at the first point; empty unless requested.
        left_out: One sentence for each kind of memory or cost that the figures do not include.
        assumptions: Assumptions about the source, one sentence each.
        versions: Package name -> version, for the packages that the figures depend on.
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
        """Return the HTML for a notebook."""
        from .page.plan_page import plan_document
        from .page.rendering import render_in_notebook

        return render_in_notebook(plan_document(self))

    def steps_on(self, device: str, *, is_eager: bool) -> list[PlannedStep]:
        """Return the timeline of one device, for the program or for eager mode."""
        return [step for step in self.timeline if (step.device, step.is_eager) == (device, is_eager)]
