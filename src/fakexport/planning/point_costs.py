"""What one call of a program costs at least, at one choice of sizes: by device and by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from fakexport.costs import CostsAt, DeviceCost, bounds
from fakexport.devices import DeviceProfile, Topology
from fakexport.memory import ChosenSizes, ProgramSizes
from fakexport.report import PlannedCosts, PlannedModule


def planned_costs(
    costs: CostsAt, topology: Topology, sizes: ProgramSizes, chosen: ChosenSizes
) -> PlannedCosts:
    """Return what the devices do in one call, and the times that they cannot stay below."""
    found = costs.devices()
    devices = [
        _device(found[name], found, topology.device(name).profile)
        for name in sorted(found)
        if _is_used(found[name])
    ]
    return PlannedCosts(tuple(devices), _tokens(sizes, chosen), costs.uncounted())


def planned_modules(costs: CostsAt) -> tuple[PlannedModule, ...]:
    """Return what each module does, each after the one that it is in; equal modules of a list are one."""
    root = _Module("")
    for module in costs.modules():
        root.add(
            module.module_path.split(".") if module.module_path else [],
            module.flops,
            module.read_bytes,
            module.device,
        )
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
    """Return the new tokens of a call; of an encoder and a decoder those of the one that reads more."""
    queries = {dim.name: dim for dim in sizes.dims if dim.role == "context" and "mask" not in dim.name}
    batches = {
        dim.name: chosen.valued(dim.size) for dim in sizes.dims if dim.role == "batch" and dim.dim == 0
    }
    counts = [batches.get(name, 1) * chosen.valued(dim.size) for name, dim in queries.items()]
    return max(counts, default=None)


@dataclass
class _Module:
    """A module with the modules below it."""

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
        """What equal modules have in common; the first of them may read an input as well."""
        below = tuple((name, child.structure) for name, child in self.children.items())
        return self.flops, below


def _rows(run: list[_Module], *, depth: int, above: str = "") -> Iterator[PlannedModule]:
    """Yield a row for equal modules, and rows for what is below all of them."""
    first, last = run[0], run[-1]
    name = first.name if first.name == last.name else f"{first.name}-{last.name}"
    path = ".".join(part for part in (above, name) if part)
    runs = [
        [module.children[child.name] for module in run for child in below]
        for below in _runs(list(first.children.values()))
    ]
    if len(runs) == 1 and not first.own and len(run) == 1 and first.name:
        # A list, or a wrapper: what is in it says the same.
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
    """Yield equal modules that follow each other in a list."""
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
