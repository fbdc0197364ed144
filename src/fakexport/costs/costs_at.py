"""The costs of a program at chosen sizes, device by device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fakexport._torch.size_values import size_value, symbols_of
from fakexport._torch.symbolic_numbers import unbacked_index
from fakexport.costs.program_costs import NodeCost, ProgramCosts
from fakexport.memory import Size, Sizes, Storage
from fakexport.program import Visit


@dataclass
class DeviceCost:
    """What one device does in one call.

    Args:
        device: `cuda:0`.
        flops: By torch's formulas.
        least_flops: Dtype of the factors -> operations that no kernel does without.
        read_bytes: Of weights, cache and inputs: what any kernel has to read.
        written_bytes: Of outputs and of what a cache grows by.
        sent_bytes: Device -> bytes that go there.
        exchanged_bytes: What it receives from other ranks at least.
    """

    device: str
    flops: int = 0
    least_flops: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    written_bytes: int = 0
    sent_bytes: Counter[str] = field(default_factory=Counter)
    exchanged_bytes: int = 0


@dataclass(frozen=True)
class ModuleCost:
    """What the nodes of one module do, those of the modules inside of it left out."""

    module_path: str
    device: str
    flops: int
    read_bytes: int


class CostsAt:
    """A program's costs at chosen values of its symbols.

    Args:
        costs: The program's.
        sizes: Its storages at these values.
        values: The value of each symbol, by name; for a size that only a run tells, the greatest:
            operations count it, and what is needed at least does not.
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
