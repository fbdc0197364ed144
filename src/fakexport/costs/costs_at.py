"""The costs of a program at chosen sizes, device by device, and lower bounds of its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fakexport._torch.size_values import size_value, symbols_of
from fakexport._torch.symbolic_numbers import unbacked_index
from fakexport.costs.program_costs import NodeCost, ProgramCosts
from fakexport.devices import DeviceProfile
from fakexport.memory import Size, Sizes, Storage
from fakexport.program import Visit


@dataclass
class DeviceCost:
    """What one device does in one call.

    Args:
        name: `cuda:0`.
        profile: Name of its profile.
        flops: By the formulas of `torch.utils.flop_counter`.
        least_flops: Dtype of what is multiplied -> operations that no kernel does without.
        read_bytes: Bytes of weights, cache and inputs that any kernel reads.
        written_bytes: Bytes of outputs, and what a cache grows by.
        sent_bytes: Device -> bytes that go there.
        exchanged_bytes: Bytes that it receives from other ranks at least; 0 without tensor parallelism.
        bounds: The times that follow, as far as the profile has the rates.
    """

    name: str
    profile: str = ""
    flops: int = 0
    least_flops: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    written_bytes: int = 0
    sent_bytes: Counter[str] = field(default_factory=Counter)
    exchanged_bytes: int = 0
    bounds: tuple[Bound, ...] = ()

    @property
    def least_seconds(self) -> float | None:
        """The greatest of its bounds; None if its profile has no rates."""
        return max((bound.seconds for bound in self.bounds), default=None)

    @property
    def flops_per_byte(self) -> float | None:
        """Arithmetic intensity: operations over the bytes that are read and written; None for no bytes."""
        moved = self.read_bytes + self.written_bytes
        return self.flops / moved if moved else None


@dataclass(frozen=True)
class Bound:
    """A time that one call takes on a device at least.

    Args:
        limit: What takes it: arithmetic, the device's memory, or its links to other devices.
        seconds: No call is faster.
        amount: Operations, or bytes, that no kernel does without.
        per_second: The profile's rate for them.
        dtype: Dtype of what is multiplied; "" for bytes.
        source: Where the rate is from.
    """

    limit: Literal["compute", "memory", "link"]
    seconds: float
    amount: int
    per_second: float
    dtype: str
    source: str


@dataclass(frozen=True)
class ModuleCost:
    """What the nodes of one module do, those of the modules inside of it left out."""

    module_path: str
    device: str
    flops: int
    read_bytes: int


class CostsAt:
    """A program's costs at values of its symbols, by name.

    For a size that only a run tells, pass the greatest: operations count it, lower bounds do not.
    """

    def __init__(self, costs: ProgramCosts, sizes: Sizes, values: Mapping[str, int]) -> None:
        self._costs, self._sizes, self._values = costs, sizes, values
        self._known: dict[object, int] = {}
        self._taken = self._branches()

    def devices(self) -> dict[str, DeviceCost]:
        """Return what each device does, by name."""
        found = {device: DeviceCost(device) for device in self._costs.liveness.devices}

        def of(device: str) -> DeviceCost:
            return found.setdefault(device, DeviceCost(device))

        read: dict[int, int] = {}
        for node in self._nodes():
            for product in node.products:
                of(product.device).flops += self._value(product.flops)
                of(product.device).least_flops[product.dtype] += self._surely(node, product.least)
            for storage, size in self._reads(node).items():
                read[storage] = max(size, read.get(storage, 0))
            if node.sent and node.is_sure:
                source, target, size = node.sent
                of(source).sent_bytes[target] += self._surely(node, size)
            if node.received and node.is_sure:
                device, size = node.received
                of(device).exchanged_bytes += self._surely(node, size)
        for storage, size in read.items():
            of(self._costs.liveness.storages[storage].device).read_bytes += size
        for device, size in self._written():
            of(device).written_bytes += size
        return found

    def modules(self) -> Iterator[ModuleCost]:
        """Yield the costs of each module in the order of execution; a weight counts at its first read."""
        flops: Counter[tuple[str, str]] = Counter()
        read: Counter[tuple[str, str]] = Counter()
        counted: dict[int, int] = {}
        for node in self._nodes():
            path = node.visit.module_path
            for product in node.products:
                flops[path, product.device] += self._value(product.flops)
            for storage, size in self._reads(node).items():
                place = path, self._costs.liveness.storages[storage].device
                read[place] += max(0, size - counted.get(storage, 0))
                counted[storage] = max(size, counted.get(storage, 0))
        for path, device in dict.fromkeys((*flops, *read)):
            yield ModuleCost(path, device, flops[path, device], read[path, device])

    def uncounted(self) -> tuple[str, ...]:
        """Return a sentence for each operator that multiplies and counts as 0."""
        return tuple(f"{name} counts as 0 FLOP: {why}" for name, why in self._costs.uncounted.items())

    def _nodes(self) -> Iterator[NodeCost]:
        for node in self._costs.nodes:
            if node.branch is None or self._taken[node.branch[0]] == node.branch[1]:
                yield node

    def _branches(self) -> dict[int, str]:
        """Return for each `cond` the branch with more operations, as torch's counter takes it."""
        flops: dict[int, Counter[str]] = {}
        for node in self._costs.nodes:
            if node.branch is not None:
                own = flops.setdefault(node.branch[0], Counter())
                own[node.branch[1]] += sum(self._value(product.flops) for product in node.products)
        return {place: max(own, key=own.__getitem__) for place, own in flops.items()}

    def _reads(self, node: NodeCost) -> dict[int, int]:
        """Return what a node surely reads: nothing, if there is nothing to compute."""
        computes = any(self._surely(node, product.least) for product in node.products)
        if not node.is_sure or (node.products and not computes):
            return {}
        storages = self._costs.liveness.storages
        found = {storage: max(0, self._surely(node, size)) for storage, size in node.reads.items()}
        return {
            storage: min(size, self._sizes.bytes[storage])
            for storage, size in found.items()
            if size and not _is_unbacked(storages[storage].bytes)
        }

    def _written(self) -> Iterator[tuple[str, int]]:
        """Yield device and bytes of each output, and of what the state grows by.

        An output that is a view of something counts as 0, as does a cache that stays as large as it was.
        """
        liveness, sizes = self._costs.liveness, self._sizes.bytes
        grown: Counter[str] = Counter()
        for index, storage in enumerate(liveness.storages):
            if index < liveness.held and storage.kind == "state":
                grown[storage.device] -= sizes[index]
            if not self._is_returned(storage) or _is_unbacked(storage.bytes):
                continue
            if storage.kind == "output":
                yield storage.device, sizes[index]
            elif storage.kind == "state":
                grown[storage.device] += sizes[index]
        yield from ((device, size) for device, size in grown.items() if size > 0)

    def _is_returned(self, storage: Storage) -> bool:
        return isinstance(storage.visit, Visit) and storage.visit.node in self._costs.returned

    def _surely(self, node: NodeCost, size: Size) -> int:
        return 0 if not node.is_sure or _is_unbacked(size) else self._value(size)

    def _value(self, size: Size) -> int:
        known = self._known.get(size)
        if known is None:
            point = {symbol: self._values[symbol.name] for symbol in symbols_of(size)}
            known = self._known[size] = size_value(size, point)
        return known


def _is_unbacked(size: Size) -> bool:
    return any(unbacked_index(symbol.name) is not None for symbol in symbols_of(size))


_MIB = 2**20
# AMD's GPUs have a cache behind the L2, which their profiles do not tell: 256 MiB in the MI300 series.
_INFINITY_CACHE_BYTES = 256 * _MIB
# More than any GPU has.
_UNKNOWN_CACHE_BYTES = 512 * _MIB


def bounds(cost: DeviceCost, profile: DeviceProfile, *, received_bytes: int) -> Iterator[Bound]:
    """Yield what bounds the time of a device, as far as its profile has the rates.

    Each holds by itself: arithmetic, memory and links may work at the same time, and so may units for
    different dtypes.
    `received_bytes` come from other devices of the program, without the host.
    """

    def source(field: str) -> str:
        return profile.sources.get(field) or profile.sources.get("peak_flops", "")

    compute = [
        Bound("compute", flops / rate, flops, rate, dtype, source(f"peak_flops.{dtype}"))
        for dtype, flops in cost.least_flops.items()
        if flops and (rate := fastest_rate(dtype, profile.peak_flops))
    ]
    yield from sorted(compute, key=lambda bound: -bound.seconds)[:1]
    bandwidth = profile.memory_bandwidth_bytes_per_s
    if bandwidth:
        cache = _cache_bytes(profile)
        moved = max(0, cost.read_bytes - cache) + max(0, cost.written_bytes - cache)
        yield Bound("memory", moved / bandwidth, moved, bandwidth, "", source("memory_bandwidth_bytes_per_s"))
    sent = sum(size for device, size in cost.sent_bytes.items() if device != "cpu")
    received = received_bytes + cost.exchanged_bytes
    if profile.link_bandwidth_bytes_per_s and (busier := max(sent, received)):
        # The profile adds both directions.
        rate = profile.link_bandwidth_bytes_per_s / 2
        yield Bound("link", busier / rate, busier, rate, "", source("link_bandwidth_bytes_per_s"))


def fastest_rate(dtype: str, rates: Mapping[str, float]) -> float | None:
    """Return the greatest rate at which a device may compute with a dtype, whatever the settings of torch.

    Returns:
        None if the profile has no rates at all. float32 may be computed as TF32; float16 may be added up in
        float16, at the rate of int8 by half; a dtype without a unit of its own is converted.
    """
    if not rates:
        return None
    fallback = max(rates.values())
    int8 = rates.get("int8", 0.0)
    if dtype in ("float64", "complex128"):
        return rates.get("float64") or fallback
    if dtype in ("float32", "complex64"):
        return max(rates.get("float32", 0.0), rates.get("tf32", 0.0)) or fallback
    if dtype == "float16":
        return max(rates.get("float16", 0.0), int8 / 2) or fallback
    if dtype == "bfloat16":
        return rates.get("bfloat16") or fallback
    if dtype.startswith("float8"):
        return max(rates["float8"], int8) if "float8" in rates else fallback
    # Profiles have no rate for 4 bits, at which the newest devices are twice as fast as at 8.
    return 2 * fallback if dtype.startswith("float4") else fallback


def _cache_bytes(profile: DeviceProfile) -> int:
    """Return how much of what a call reads or writes may stay on the chip from one call to the next."""
    if profile.l2_cache_bytes is None:
        return _UNKNOWN_CACHE_BYTES
    return profile.l2_cache_bytes + (_INFINITY_CACHE_BYTES if profile.gcn_arch_name else 0)
