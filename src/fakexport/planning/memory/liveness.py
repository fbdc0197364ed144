"""Determine the storages of a program, when each one is allocated and freed, and the peak of each device."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing.symbolic_numbers import size_value, symbols_of
from fakexport.emulation.devices import Topology, emulate, emulated_topology
from fakexport.error import InvalidValue
from fakexport.exporting.program import Visit, devices_of_program, facts_of
from fakexport.planning.memory.execution import Execution
from fakexport.planning.memory.storage import KINDS, Kind, Step, Storage


@dataclass(frozen=True)
class DeviceEvents:
    """The storages that exist on a device during the whole run, and the `Liveness.events` of the device."""

    held: tuple[int, ...]
    events: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Liveness:
    """The storages of a program and their lifetimes, with sizes as expressions over the program's symbols.

    Args:
        storages: All storages: first those that exist from the start, then the others in order of allocation.
        held: Number of storages, at the start of `storages`, that exist before, during and after the run:
            weights, constants, inputs.
        events: Pairs of a step and a number, in execution order. The number is `k` if storage k is allocated,
            and `~k` if it is freed.
        steps: The nodes in execution order, or the operators of a training step. The body of a loop may occur
            more than once.
        state: Storages that make up the state after the run: returned caches, and inputs or buffers that the
            program writes.
        left_out: One sentence for each operator whose memory is omitted, or derived only from its schema.
        unmodeled: Step and name of each operator whose kernel allocates an unknown amount of temporary
            memory.
    """

    storages: tuple[Storage, ...]
    held: int
    events: tuple[tuple[int, int], ...]
    steps: tuple[Step, ...]
    state: tuple[int, ...] = ()
    left_out: tuple[str, ...] = ()
    unmodeled: tuple[tuple[int, str], ...] = ()

    @property
    def visits(self) -> Iterator[Visit]:
        """Steps that are graph nodes. A training step has none, because its steps are operators."""
        return (step for step in self.steps if isinstance(step, Visit))

    @functools.cached_property
    def has_collectives(self) -> bool:
        """Whether a step communicates with other ranks."""
        return any(step.operator.startswith("_c10d_functional.") for step in self.steps)

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """Sorted names of the symbols that any size depends on, such as `s77`.

        Symbols such as `u0` are known only at run time.
        """
        found = {symbol.name for storage in self.storages for symbol in symbols_of(storage.bytes)}
        return tuple(sorted(found))

    @functools.cached_property
    def devices(self) -> tuple[str, ...]:
        """Sorted names of all devices that have storages."""
        return tuple(sorted({storage.device for storage in self.storages}))

    @functools.cached_property
    def on_devices(self) -> Mapping[str, DeviceEvents]:
        held: dict[str, list[int]] = {device: [] for device in self.devices}
        events: dict[str, list[tuple[int, int]]] = {device: [] for device in self.devices}
        for index, storage in enumerate(self.storages[: self.held]):
            held[storage.device].append(index)
        for step, event in self.events:
            events[self.storages[event if event >= 0 else ~event].device].append((step, event))
        return {device: DeviceEvents(tuple(held[device]), tuple(events[device])) for device in self.devices}


def liveness(program: ExportedProgram, *, topology: Topology | None = None) -> Liveness:
    """Return the storages of a program and when each one is live, as `program.module()` executes it.

    A value is freed after its last use, as in the code that `torch.fx` generates. Inputs and weights are
    never freed. Operators that may return a view or a copy (`reshape`, `contiguous`, `to`, `dropout`) run on
    fake tensors with the sizes of the example inputs to find out which. Both branches of a `torch.cond`
    count, one after the other.

    Args:
        topology: The devices of the program. Default: those that it was exported for, if known.
    """
    # Disable the caller's autocast, because the program enters its own autocast regions.
    types = {device.partition(":")[0] for device in devices_of_program(program)}
    with _machine(program, topology), autocast_on(types, None):
        execution = Execution(program)
        execution.run()
    return Liveness(
        storages=tuple(execution.storages),
        held=execution.held,
        events=tuple(execution.events),
        steps=tuple(execution.steps),
        state=tuple(execution.state),
        left_out=tuple(execution.left_out()),
        unmodeled=tuple(execution.unmodeled),
    )


@contextmanager
def autocast_on(devices: set[str], dtype: torch.dtype | None) -> Iterator[None]:
    """Enable autocast to a dtype, or disable it if None. The host is included if it is the only device."""
    with ExitStack() as stack:
        for kind in sorted(devices - {"meta"}):
            is_cast = dtype is not None and (kind != "cpu" or devices == {"cpu"})
            stack.enter_context(torch.autocast(kind, enabled=is_cast, dtype=dtype if is_cast else None))
        yield


def _machine(program: ExportedProgram, topology: Topology | None) -> AbstractContextManager[object]:
    """Return a context in which fake tensors can use the program's devices."""
    devices = [device for device in devices_of_program(program) if device not in ("cpu", "meta")]
    current = emulated_topology()
    if not devices or (current is not None and all(map(current.has_device, devices))):
        return nullcontext()
    spec = facts_of(program).topology
    known = topology or (None if spec is None else Topology.parse(spec))
    if known is None or not all(map(known.has_device, devices)):
        known = Topology.parse("+".join(_enough(devices)))
    return emulate(known)


def _enough(devices: list[str]) -> Iterator[str]:
    """Yield a topology for each device type, such as `8xcuda`, with enough devices for the highest index."""
    for kind in sorted({device.partition(":")[0] for device in devices}):
        indices = [int(name.partition(":")[2] or 0) for name in devices if name.partition(":")[0] == kind]
        yield f"{max(indices) + 1}x{kind}" if max(indices) else kind


@dataclass(frozen=True)
class LiveStorage:
    """A storage and its bytes at the chosen sizes, before any allocator rounds them."""

    storage: Storage
    bytes: int


@dataclass(frozen=True)
class DevicePeak:
    """The peak memory of a program on one device.

    Args:
        held_bytes: Bytes that exist before, during and after the run: weights, constants, inputs.
        bytes_by_kind: Bytes of each kind of storage at the peak, in the order of `KINDS`, without zeros.
        step: The first node that reaches the peak; None if no node allocates anything.
        largest: The largest storages at the peak in descending order, as many as requested.
    """

    device: str
    bytes: int
    held_bytes: int
    bytes_by_kind: Mapping[Kind, int]
    step: Step | None
    largest: tuple[LiveStorage, ...]

    @property
    def run_bytes(self) -> int:
        """Bytes that a run adds to `held_bytes`: activations, temporaries, outputs."""
        return self.bytes - self.held_bytes


@dataclass(frozen=True)
class Sizes:
    """The bytes of each storage at chosen values of the symbols, before any allocator rounds them."""

    liveness: Liveness
    bytes: tuple[int, ...]

    def timeline(self, device: str) -> list[int]:
        """Return the bytes in use on a device after each of its events."""
        found = self.liveness.on_devices[device]
        held = sum(self.bytes[index] for index in found.held)
        changes = (self.bytes[event] if event >= 0 else -self.bytes[~event] for _, event in found.events)
        return list(itertools.accumulate(changes, initial=held))[1:]

    def fullest_by_step(self, device: str) -> Iterator[tuple[Step, dict[Kind, int]]]:
        """Yield each step that allocates or frees memory on a device, and the peak bytes by kind."""
        own, storages = self.liveness.on_devices[device], self.liveness.storages
        held = dict.fromkeys(KINDS, 0)
        for index in own.held:
            held[storages[index].kind] += self.bytes[index]
        for step, events in itertools.groupby(own.events, key=itemgetter(0)):
            found: dict[Kind, int] = {}
            for _, event in events:
                index = event if event >= 0 else ~event
                held[storages[index].kind] += self.bytes[index] if event >= 0 else -self.bytes[index]
                if not found or sum(held.values()) > sum(found.values()):
                    found = dict(held)
            yield self.liveness.steps[step], found

    def state_after(self, device: str) -> int:
        """Return the bytes of the state on a device after the run: caches and written buffers."""
        storages = self.liveness.storages
        return sum(self.bytes[index] for index in self.liveness.state if storages[index].device == device)

    def peak(self, device: str, *, largest: int = 10) -> DevicePeak:
        """Return the peak memory of a device. `largest` limits the number of storages that are listed."""
        own = self.liveness.on_devices[device]
        line = self.timeline(device)
        top = max(range(len(line)), key=line.__getitem__, default=-1)
        held_bytes = sum(self.bytes[index] for index in own.held)
        if top >= 0 and line[top] <= held_bytes:
            top = -1
        alive = _alive(own, top)
        by_kind = dict.fromkeys(KINDS, 0)
        for index in alive:
            by_kind[self.liveness.storages[index].kind] += self.bytes[index]
        ordered = sorted(alive, key=lambda index: (-self.bytes[index], index))[:largest]
        return DevicePeak(
            device=device,
            bytes=sum(by_kind.values()),
            held_bytes=held_bytes,
            bytes_by_kind={kind: size for kind, size in by_kind.items() if size},
            step=None if top < 0 else self.liveness.steps[own.events[top][0]],
            largest=tuple(LiveStorage(self.liveness.storages[i], self.bytes[i]) for i in ordered),
        )


def _alive(own: DeviceEvents, last_event: int) -> list[int]:
    """Return the indices of the storages that are live after event `last_event` (-1: before all events)."""
    alive = dict.fromkeys(own.held)
    for _, event in own.events[: last_event + 1]:
        if event >= 0:
            alive[event] = None
        else:
            alive.pop(~event)
    return list(alive)


def sizes_at(liveness: Liveness, values: Mapping[str, int]) -> Sizes:
    """Return the bytes of every storage at these values of the symbols. Their ranges are not checked."""
    missing = [name for name in liveness.symbols if name not in values]
    if missing:
        raise InvalidValue(
            f"the sizes of this program depend on symbols without a value: {', '.join(missing)}"
        )
    known: dict[object, int] = {}
    sizes: list[int] = []
    for storage in liveness.storages:
        size = known.get(storage.bytes)
        if size is None:
            size = known[storage.bytes] = size_value(storage.bytes, values)
        sizes.append(size)
    return Sizes(liveness, tuple(sizes))
