"""Evaluate a program's costs per device at chosen sizes, and derive lower bounds of its run time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fakexport._torch.tracing.symbolic_numbers import size_value, symbols_of, unbacked_index
from fakexport.emulation.devices import DeviceProfile, Topology
from fakexport.exporting.program import Visit
from fakexport.planning.costs.program_costs import NodeCost, ProgramCosts
from fakexport.planning.memory import ChosenSizes, ProgramSizes, Size, Sizes
from fakexport.report import Bound, DeviceCost, PlannedCosts, PlannedModule


class CostsAt:
    """Evaluate the costs of a program for given values of its symbols.

    For a data-dependent size, pass its maximum. FLOP counts use it. Lower bounds ignore costs that depend on
    such a size.
    """

    def __init__(self, costs: ProgramCosts, sizes: Sizes, values: Mapping[str, int]) -> None:
        self._costs, self._sizes, self._values = costs, sizes, values
        self._known: dict[object, int] = {}
        self._taken = self._branches()

    def devices(self) -> dict[str, DeviceCost]:
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

    def modules(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield each module's path and device, and the FLOPs and bytes read of its own nodes, in order.

        A weight counts only for its first reader.
        """
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
            yield path, device, flops[path, device], read[path, device]

    def by_node(self) -> Iterator[tuple[Visit, Counter[str], dict[int, int]]]:
        """Yield each node that multiplies or reads a weight or an input, in order.

        Yields:
            The node, its minimum FLOPs by dtype, and the minimum bytes that it reads by storage.
        """
        for node in self._nodes():
            flops = Counter[str]()
            for product in node.products:
                flops[product.dtype] += self._surely(node, product.least)
            yield node.visit, flops, self._reads(node)

    def uncounted(self) -> tuple[str, ...]:
        """Return a sentence for each operator that multiplies but is counted as 0 FLOP."""
        return tuple(f"{name} counts as 0 FLOP: {why}" for name, why in self._costs.uncounted.items())

    def _nodes(self) -> Iterator[NodeCost]:
        for node in self._costs.nodes:
            if node.branch is None or self._taken[node.branch[0]] == node.branch[1]:
                yield node

    def _branches(self) -> dict[int, str]:
        """Map each `cond` to its branch with the most FLOPs. torch's FLOP counter chooses the same branch."""
        flops: dict[int, Counter[str]] = {}
        for node in self._costs.nodes:
            if node.branch is not None:
                own = flops.setdefault(node.branch[0], Counter())
                own[node.branch[1]] += sum(self._value(product.flops) for product in node.products)
        return {place: max(own, key=own.__getitem__) for place, own in flops.items()}

    def _reads(self, node: NodeCost) -> dict[int, int]:
        """Return the minimum bytes that a node reads, by storage; {} if the node may compute nothing."""
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
        """Yield the device and bytes of each output, and the bytes by which each device's state grows.

        The state consists of caches and written buffers. Outputs that are views count as 0.
        """
        liveness, sizes = self._costs.liveness, self._sizes.bytes
        grown: Counter[str] = Counter()
        for index, storage in enumerate(liveness.storages):
            if index < liveness.held and storage.kind == "state":
                grown[storage.device] -= sizes[index]
            is_returned = isinstance(storage.visit, Visit) and storage.visit.node in self._costs.returned
            if not is_returned or _is_unbacked(storage.bytes):
                continue
            if storage.kind == "output":
                yield storage.device, sizes[index]
            elif storage.kind == "state":
                grown[storage.device] += sizes[index]
        yield from ((device, size) for device, size in grown.items() if size > 0)

    def _surely(self, node: NodeCost, size: Size) -> int:
        return 0 if not node.is_sure or _is_unbacked(size) else self._value(size)

    def _value(self, size: Size) -> int:
        known = self._known.get(size)
        if known is None:
            known = self._known[size] = size_value(size, self._values)
        return known


def _is_unbacked(size: Size) -> bool:
    return any(unbacked_index(symbol.name) is not None for symbol in symbols_of(size))


def planned_costs(
    costs: CostsAt, topology: Topology, sizes: ProgramSizes, chosen: ChosenSizes
) -> PlannedCosts:
    """Return the FLOPs, bytes and lower bounds of the run time of one call, per device."""
    found = costs.devices()
    devices = [
        _device(found[name], found, topology.device(name).profile)
        for name in sorted(found)
        if _is_used(found[name])
    ]
    return PlannedCosts(tuple(devices), _tokens(sizes, chosen), costs.uncounted())


def planned_modules(costs: CostsAt) -> tuple[PlannedModule, ...]:
    """Return FLOPs and bytes read per module, in tree order; identical modules of a list are merged."""
    root = _Module("")
    for path, device, flops, read_bytes in costs.modules():
        root.add(path.split(".") if path else [], flops, read_bytes, device)
    return tuple(_rows([root], depth=0))


def _is_used(cost: DeviceCost) -> bool:
    moved = cost.read_bytes or cost.written_bytes or cost.sent_bytes or cost.exchanged_bytes
    return bool(cost.flops or moved)


def _device(cost: DeviceCost, others: Mapping[str, DeviceCost], profile: DeviceProfile) -> DeviceCost:
    received = sum(
        other.sent_bytes[cost.name] for other in others.values() if not other.name.startswith("cpu")
    )
    return replace(
        cost,
        profile=profile.name,
        least_flops=Counter(dict(sorted(cost.least_flops.items()))),
        sent_bytes=Counter(dict(sorted(cost.sent_bytes.items()))),
        bounds=tuple(bounds(cost, profile, received_bytes=received)),
    )


def _tokens(sizes: ProgramSizes, chosen: ChosenSizes) -> int | None:
    """Return the number of new tokens of a call; the larger number if both encoder and decoder read some."""
    queries = {dim.name: dim for dim in sizes.dims if dim.is_query}
    batches = {
        dim.name: chosen.valued(dim.size) for dim in sizes.dims if dim.role == "batch" and dim.dim == 0
    }
    counts = [batches.get(name, 1) * chosen.valued(dim.size) for name, dim in queries.items()]
    return max(counts, default=None)


@dataclass
class _Module:
    """Costs of a module including its submodules. `own` is the sum of FLOPs and bytes without submodules."""

    name: str
    flops: int = 0
    read_bytes: int = 0
    devices: set[str] = field(default_factory=set)
    own: int = 0
    children: dict[str, _Module] = field(default_factory=dict)

    def add(self, path: list[str], flops: int, read_bytes: int, device: str) -> None:
        self.flops += flops
        self.read_bytes += read_bytes
        self.devices.add(device)
        if not path:
            self.own += flops + read_bytes
        else:
            self.children.setdefault(path[0], _Module(path[0])).add(path[1:], flops, read_bytes, device)

    @property
    def structure(self) -> tuple[object, ...]:
        """FLOPs of the module and its children, equal for identical modules. Bytes read may differ."""
        below = tuple((name, child.structure) for name, child in self.children.items())
        return self.flops, below


def _rows(run: list[_Module], *, depth: int, above: str = "") -> Iterator[PlannedModule]:
    first, last = run[0], run[-1]
    name = first.name if first.name == last.name else f"{first.name}-{last.name}"
    path = ".".join(part for part in (above, name) if part)
    runs = [
        [module.children[child.name] for module in run for child in below]
        for below in _runs(list(first.children.values()))
    ]
    if len(runs) == 1 and not first.own and len(run) == 1 and first.name:
        # Omit a list or wrapper whose only child has the same figures.
        yield from _rows(runs[0], depth=depth, above=path)
        return
    yield PlannedModule(
        path=path,
        depth=depth,
        count=len(run),
        flops=sum(module.flops for module in run),
        read_bytes=sum(module.read_bytes for module in run),
        devices=tuple(sorted(set[str]().union(*(module.devices for module in run)))),
    )
    for below in runs:
        yield from _rows(below, depth=depth + 1, above=path)


def _runs(modules: list[_Module]) -> Iterator[list[_Module]]:
    """Group consecutive identical modules of a list, such as `0` to `11`."""
    run: list[_Module] = []
    for module in modules:
        if run and _continues(run[-1], module):
            run.append(module)
            continue
        if run:
            yield run
        run = [module]
    if run:
        yield run


def _continues(before: _Module, module: _Module) -> bool:
    names = (before.name, module.name)
    is_next = all(map(str.isdecimal, names)) and int(names[0]) + 1 == int(names[1])
    return is_next and before.structure == module.structure


_MIB = 2**20
# AMD GPUs have a cache behind the L2 that their profiles do not include: 256 MiB in the MI300 series.
_INFINITY_CACHE_BYTES = 256 * _MIB
# More cache than any GPU has.
_UNKNOWN_CACHE_BYTES = 512 * _MIB


def bounds(cost: DeviceCost, profile: DeviceProfile, *, received_bytes: int) -> Iterator[Bound]:
    """Yield lower bounds of a device's run time, for compute, memory and link if the profile has the rates.

    Do not add the bounds: arithmetic, memory access and transfers may run at the same time. Arithmetic units
    for different dtypes may run at the same time too. `received_bytes` counts bytes from other devices of the
    program, not from the host.
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
        # The profile's bandwidth is the sum of both directions.
        rate = profile.link_bandwidth_bytes_per_s / 2
        yield Bound("link", busier / rate, busier, rate, "", source("link_bandwidth_bytes_per_s"))


def fastest_rate(dtype: str, rates: Mapping[str, float]) -> float | None:
    """Return the highest FLOP/s that a device may reach with a dtype, under any torch setting, or None.

    float32 may be computed as TF32. float16 may be accumulated in float16, at half the int8 rate. A dtype
    that has no arithmetic unit of its own is converted to a dtype that has one.
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
    # Profiles have no 4-bit rates. The newest devices are twice as fast with 4 bits as with 8.
    return 2 * fallback if dtype.startswith("float4") else fallback


def _cache_bytes(profile: DeviceProfile) -> int:
    """Return the maximum number of bytes from one call that are still in the cache at the next call."""
    if profile.l2_cache_bytes is None:
        return _UNKNOWN_CACHE_BYTES
    return profile.l2_cache_bytes + (_INFINITY_CACHE_BYTES if profile.gcn_arch_name else 0)
