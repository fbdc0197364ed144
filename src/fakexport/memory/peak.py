"""How much memory a program holds at chosen sizes: the timeline of each device, and its peak."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

from fakexport._torch.size_values import size_value, symbols_of
from fakexport.error import InvalidValue
from fakexport.memory.liveness import DeviceEvents, Liveness
from fakexport.memory.storage import KINDS, Kind, Step, Storage


@dataclass(frozen=True)
class LiveStorage:
    """A storage and its bytes at the chosen sizes, before any allocator rounds them."""

    storage: Storage
    bytes: int


@dataclass(frozen=True)
class DevicePeak:
    """The greatest amount of memory that a program holds at once on one device.

    Args:
        device: `cpu`, `cuda:0`.
        bytes: In total, weights and inputs included.
        held_bytes: What is there before, while and after the program runs: weights, constants, inputs.
        bytes_by_kind: Bytes of each kind of storage at the peak, in the order of `KINDS`; none that is 0.
        step: The node at which it is reached, for the first time; None where no node takes anything.
        largest: What is held there, greatest first, as many as were asked for.
    """

    device: str
    bytes: int
    held_bytes: int
    bytes_by_kind: Mapping[Kind, int]
    step: Step | None
    largest: tuple[LiveStorage, ...]

    @property
    def run_bytes(self) -> int:
        """What running the program adds to what is held: activations, temporaries, outputs."""
        return self.bytes - self.held_bytes


@dataclass(frozen=True)
class Sizes:
    """The bytes of each storage at chosen values of the symbols, before any allocator rounds them."""

    liveness: Liveness
    bytes: tuple[int, ...]

    def timeline(self, device: str) -> list[int]:
        """Return the bytes held on a device after each of its events."""
        found = self.liveness.on_devices[device]
        held = sum(self.bytes[index] for index in found.held)
        changes = (self.bytes[event] if event >= 0 else -self.bytes[~event] for _, event in found.events)
        return list(itertools.accumulate(changes, initial=held))[1:]

    def fullest_by_step(self, device: str) -> Iterator[tuple[Step, dict[Kind, int]]]:
        """Yield each node that takes or gives back memory of a device, and the most held while it runs."""
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
        """Return the bytes of the state on a device when the program has run: caches and written buffers."""
        storages = self.liveness.storages
        return sum(self.bytes[index] for index in self.liveness.state if storages[index].device == device)

    def peak(self, device: str, *, largest: int = 10) -> DevicePeak:
        """Return where the most memory is held on a device, and the `largest` storages held there."""
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
    """Return the storages that a device holds after one of its events; before the first for -1."""
    alive = dict.fromkeys(own.held)
    for _, event in own.events[: last_event + 1]:
        if event >= 0:
            alive[event] = None
        else:
            alive.pop(~event)
    return list(alive)


def sizes_at(liveness: Liveness, values: Mapping[str, int]) -> Sizes:
    """Return the bytes of every storage where the symbols have these values.

    Args:
        liveness: What was read off a program.
        values: The value of each of `liveness.symbols`, by name; others are ignored. Ranges are not checked.
    Raises:
        ValueError: a symbol has no value. One line.
    """
    missing = [name for name in liveness.symbols if name not in values]
    if missing:
        raise InvalidValue(f"no value for {', '.join(missing)}: the sizes of this program depend on it")
    known: dict[object, int] = {}
    sizes: list[int] = []
    for storage in liveness.storages:
        size = known.get(storage.bytes)
        if size is None:
            point = {symbol: values[symbol.name] for symbol in symbols_of(storage.bytes)}
            size = known[storage.bytes] = size_value(storage.bytes, point)
        sizes.append(size)
    return Sizes(liveness, tuple(sizes))
