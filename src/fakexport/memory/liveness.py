"""When a program holds which memory: its storages, and the order in which they come and go."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from fakexport._torch.size_values import symbols_of
from fakexport.devices import Topology, emulate, emulated_topology
from fakexport.memory.execution import Execution
from fakexport.memory.storage import Step, Storage
from fakexport.program import Visit, devices_of_program, facts_of


@dataclass(frozen=True)
class DeviceEvents:
    """The storages that one device holds all the time, and the events of the others, as `Liveness.events`."""

    held: tuple[int, ...]
    events: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Liveness:
    """The storages of a program and their lifetimes, with sizes as expressions over its symbols.

    Args:
        storages: All of them: what is held from the start first, the others in the order of allocation.
        held: How many of the first storages are there before, while and after the program runs: weights,
            constants, inputs.
        events: In the order of execution: the step, and `k` where storage k is taken or `~k` where it is
            given back.
        steps: The nodes in the order of execution, or the operators of a training step; the body of a loop
            may come more than once.
        state: Which storages are the state when the program has run: a cache that it returns, an input or
            buffer that it writes.
        left_out: What the sizes do not count or count by the schema alone, one line each.
        unmodeled: Step and name of each operator whose kernel takes an unknown amount of memory for itself.
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
        """The steps that are nodes: all of those of a program, and none of training."""
        return (step for step in self.steps if isinstance(step, Visit))

    @functools.cached_property
    def has_collectives(self) -> bool:
        """Whether a step sends to other ranks, or receives from them."""
        return any(step.operator.startswith("_c10d_functional.") for step in self.steps)

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbols that some size depends on, sorted: `s77`; `u0` only running tells."""
        found = {symbol.name for storage in self.storages for symbol in symbols_of(storage.bytes)}
        return tuple(sorted(found))

    @functools.cached_property
    def devices(self) -> tuple[str, ...]:
        """The devices that hold anything, sorted."""
        return tuple(sorted({storage.device for storage in self.storages}))

    @functools.cached_property
    def on_devices(self) -> Mapping[str, DeviceEvents]:
        """What each device holds from the start and the events of its storages, by name."""
        held: dict[str, list[int]] = {device: [] for device in self.devices}
        events: dict[str, list[tuple[int, int]]] = {device: [] for device in self.devices}
        for index, storage in enumerate(self.storages[: self.held]):
            held[storage.device].append(index)
        for step, event in self.events:
            events[self.storages[event if event >= 0 else ~event].device].append((step, event))
        return {device: DeviceEvents(tuple(held[device]), tuple(events[device])) for device in self.devices}


def liveness(program: ExportedProgram, *, topology: Topology | None = None) -> Liveness:
    """Return the storages of a program and when each is held, as `program.module()` executes it.

    A value is given back after its last use, as the code that `torch.fx` generates does it; inputs are held
    by the caller and weights by the module. Operators that may return a view or a copy (`reshape`,
    `contiguous`, `to`, `dropout`) are run on fakes to see which, at the sizes of the example inputs. Where a
    model branches on data, both branches count, one after the other.

    Args:
        program: Not changed; with or without weights.
        topology: The devices that it is for. Default: those it was exported for, as far as they are known.
    """
    # The caller's autocast is not the program's, whose own regions are entered where they are.
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
    """Cast to a dtype on types of devices, on the host if there are no others; None: cast on none of them."""
    with ExitStack() as stack:
        for kind in sorted(devices - {"meta"}):
            is_cast = dtype is not None and (kind != "cpu" or devices == {"cpu"})
            stack.enter_context(torch.autocast(kind, enabled=is_cast, dtype=dtype if is_cast else None))
        yield


def _machine(program: ExportedProgram, topology: Topology | None) -> AbstractContextManager[object]:
    """Return a context in which the devices of a program exist for fakes."""
    devices = [device for device in devices_of_program(program) if device not in ("cpu", "meta")]
    current = emulated_topology()
    if not devices or (current is not None and all(map(current.has_device, devices))):
        return nullcontext()
    known = topology or _topology_of(program)
    if known is None or not all(map(known.has_device, devices)):
        known = Topology.parse("+".join(_enough(devices)))
    return emulate(known)


def _topology_of(program: ExportedProgram) -> Topology | None:
    spec = facts_of(program).topology
    return None if spec is None else Topology.parse(spec)


def _enough(devices: list[str]) -> Iterator[str]:
    """Yield as many devices of each type, of the default model, as the highest index needs."""
    for kind in sorted({device.partition(":")[0] for device in devices}):
        indices = [int(name.partition(":")[2] or 0) for name in devices if name.partition(":")[0] == kind]
        yield f"{max(indices) + 1}x{kind}" if max(indices) else kind
