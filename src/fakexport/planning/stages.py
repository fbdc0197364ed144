"""Cut a program into pipeline stages, with the boundaries at which the slowest stage is fastest."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

import torch
from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport._torch.tracing.symbolic_numbers import unbacked_index
from fakexport.archive import Bundle, with_own_symbols
from fakexport.emulation.devices import DeviceProfile, Topology, emulate, emulated_topology
from fakexport.error import InvalidValue
from fakexport.exporting.program import (
    Spelling,
    Visit,
    devices_of_program,
    example_size,
    facts_of,
    output_names,
    summarise,
    user_inputs,
)
from fakexport.exporting.stages import StageError, cut, module_starts
from fakexport.planning.costs import CostsAt, fastest_rate
from fakexport.planning.memory import SizeRequest, sizes_at
from fakexport.planning.point import PlannedProgram
from fakexport.report import StageInput, StagesSummary, StageSummary


def split(program: ExportedProgram, stages: int | None = None, *, at: Sequence[str] = ()) -> Bundle:
    """Cut a program into pipeline stages, as a bundle of the programs `stage0`, `stage1`, ...

    Each stage is a plain `ExportedProgram` with the weights that it uses. It takes inputs of the program, and
    values of earlier stages, by name, and returns a dict: the values that later stages take, under the same
    names, and the outputs of the program that it computes, such as `logits`.

    Args:
        program: The program, with or without weights. It is not changed.
        stages: The number of stages. They begin at blocks of the model, chosen so that the bound of the
            slowest stage's time is as low as possible at the sizes of the example inputs.
        at: Instead of `stages`: the path of the module at which each stage after the first begins.
    Raises:
        StageError: the program has too few blocks, a path is not a module of the program, or a stage needs
            what cannot be sent to it (`InseparableStages`). The message is a single line.
        ValueError: neither or both of `stages` and `at` are passed.

    Example:
        >>> model = lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> list(split(export(model, (torch.zeros(3, 4),)), at=["2"]))
        ['stage0', 'stage1']
    """
    if (stages is None) == (not at):
        raise InvalidValue("pass either the number of stages or `at`, the modules at which stages begin")
    found = split_traced(program, stages or 0, at=at)
    return Bundle({name: with_own_symbols(stage) for name, stage in found.items()})


def split_traced(
    program: ExportedProgram, stages: int, *, at: Sequence[str] = ()
) -> dict[str, ExportedProgram]:
    """Cut a program as `split` does, faster, into programs to inspect or to save.

    They share the symbols of the trace. See `with_own_symbols`. If `at` is passed, `stages` is not used.
    """
    topology = emulated_topology() or Topology.parse(facts_of(program).topology or "cpu")
    return cut(program, at or balanced_starts(program, stages, topology))


def summarise_stages(stages: Bundle, topology: Topology) -> StagesSummary:
    """Return a summary of the stages that `split` returned."""
    found: list[StageSummary] = []
    sources: dict[str, int] = {}
    seen: set[str] = set()
    for number, program in enumerate(stages.values()):
        record = facts_of(program).stage
        assert record is not None
        peak, least = _planned(program, topology)
        names = [node.name for node in program.graph.nodes if node.op == "call_function"]
        found.append(
            StageSummary(
                stage=number,
                start=record.start,
                nodes=len(names),
                again=len(seen.intersection(names)),
                weight_bytes=summarise(program).held_bytes().total(),
                peak_bytes=peak,
                least_seconds=least,
                inputs=tuple(_inputs(program, sources)) if number else (),
            )
        )
        seen.update(names)
        sources |= {name: number for name in output_names(program) if name not in record.outputs}
    shared = (weight[0][1] for weight in stages.shared)
    return StagesSummary(tuple(found), tuple(shared))


def _planned(program: ExportedProgram, topology: Topology) -> tuple[int | None, float | None]:
    """Return the peak of a device in bytes, and the bound of the time; None for what is unknown."""
    try:
        point = PlannedProgram.of(program, topology).at(SizeRequest())
    except InvalidValue:  # A size is known only at run time.
        return None, None
    bounds = [] if point.costs is None else [device.least_seconds for device in point.costs.devices]
    peak = max((device.tensor_bytes for device in point.devices), default=0)
    return peak, max((bound for bound in bounds if bound is not None), default=None)


def _inputs(program: ExportedProgram, sources: Mapping[str, int]) -> Iterator[StageInput]:
    spelling = Spelling()
    for argument, node in user_inputs(program):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            spec = spelling.tensor(value)
            sizes = [example_size(size) for size in value.shape]
            size = None if None in sizes else prod(cast("list[int]", sizes)) * value.itemsize
            yield StageInput(argument.name, spec.dtype, spec.shape, size, sources.get(argument.name))


def balanced_starts(program: ExportedProgram, stages: int, topology: Topology) -> tuple[str, ...]:
    """Return the paths of the modules at which the stages after the first begin.

    All cuts between the blocks of the model are compared (by dynamic programming): first by whether the
    stages fit into the memory of a device, then by the bound of the slowest stage's time, then by the weights
    of the largest stage.

    Raises:
        StageError: the program has fewer blocks than stages.
    """
    if stages < 2:
        raise InvalidValue(f"a program is cut into at least 2 stages, got {stages}")
    places = _places(program, stages)
    if len(places) < stages - 1:
        have = "1 place" if len(places) == 1 else f"{len(places)} places"
        raise StageError(f"the program has {have} at which a stage could begin, too few for {stages} stages")
    costs = _Costs(program, topology, [0, *places.values()])
    count = len(places) + 1
    # best[n][end]: the cost of the first `end` blocks in n stages, and where the last stage begins.
    best: list[dict[int, tuple[_Cost, int]]] = [
        {},
        {end: (costs.of(0, end), 0) for end in range(1, count + 1)},
    ]
    for number in range(2, stages + 1):
        row: dict[int, tuple[_Cost, int]] = {}
        for end in range(number, count + 1):
            row[end] = min(
                (_worst(best[number - 1][start][0], costs.of(start, end)), start)
                for start in range(number - 1, end)
            )
        best.append(row)
    starts, end = [], count
    for number in range(stages, 1, -1):
        end = best[number][end][1]
        starts.append(list(places)[end - 1])
    return tuple(reversed(starts))


_Cost = tuple[int, float, int]
"""Bytes that exceed the memory of the device, bound of the time in seconds, and bytes of weights."""


def _worst(one: _Cost, other: _Cost) -> _Cost:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


def _places(program: ExportedProgram, stages: int) -> dict[str, int]:
    """Return the modules at which a stage can begin, and the positions of their first nodes.

    These are the blocks of the model, such as `model.layers.8`; all modules, if there are too few blocks.
    """
    starts = module_starts(program)
    first = min(starts.values(), default=0)
    for is_place in (_is_block, bool):
        found: dict[int, str] = {}
        for path, index in starts.items():
            if is_place(path) and index > first:
                found.setdefault(index, path)
        if len(found) >= stages - 1:
            break
    return {path: index for index, path in sorted(found.items())}


def _is_block(path: str) -> bool:
    """Return whether the path is that of an item of an outermost list, such as `model.layers.8`."""
    *above, last = path.split(".")
    return last.isdecimal() and not any(map(str.isdecimal, above))


@dataclass(frozen=True)
class _NodeCost:
    flops: Counter[str]
    reads: Mapping[int, int]


class _Costs:
    """The costs of ranges of blocks. `begins` has the position of the first node of each block."""

    def __init__(self, program: ExportedProgram, topology: Topology, begins: Sequence[int]) -> None:
        with torch_logs_silenced(), emulate(topology):
            planned = PlannedProgram.of(program, topology)
            found, costs = planned.liveness, planned.costs
            # What depends on sizes that are known only at run time counts as nothing.
            unknown = [name for name in (*found.symbols, *costs.symbols) if unbacked_index(name) is not None]
            sizes = planned.sizes.needing(costs.symbols)
            chosen = sizes.chosen(SizeRequest(bounds=dict.fromkeys(unknown, 1)))
            own = sizes_at(found, chosen.values)
            nodes = list(CostsAt(costs, own, chosen.values).by_node())
        self._held = {
            index: own.bytes[index]
            for index, storage in enumerate(found.storages[: found.held])
            if storage.kind in ("weight", "constant", "state")
        }
        places = {node: index for index, node in enumerate(program.graph.nodes)}
        blocks: list[list[_NodeCost]] = [[] for _ in begins]
        for visit, flops, reads in nodes:
            index = places[_outermost(visit).node]
            blocks[bisect_right(begins, index) - 1].append(_NodeCost(flops, reads))
        self._blocks = blocks
        self._profile = _profile(program, topology)
        self._known: dict[tuple[int, int], _Cost] = {}

    def of(self, start: int, end: int) -> _Cost:
        """Return the cost of a stage of the blocks from `start` up to, but not including, `end`."""
        if (start, end) not in self._known:
            for last, cost in enumerate(self._running(start), start + 1):
                self._known[start, last] = cost
        return self._known[start, end]

    def _running(self, start: int) -> list[_Cost]:
        """Return the costs of the stages that begin at a block, one for each block at which they may end."""
        flops, reads, held = Counter[str](), dict[int, int](), set[int]()
        found = []
        memory = self._profile.memory_bytes
        for block in self._blocks[start:]:
            for node in block:
                flops.update(node.flops)
                for storage, size in node.reads.items():
                    reads[storage] = max(size, reads.get(storage, 0))
                    held.add(storage)
            weights = sum(self._held.get(storage, 0) for storage in held)
            seconds = _seconds(self._profile, flops, sum(reads.values()))
            found.append((max(0, weights - memory) if memory else 0, seconds, weights))
        return found


def _outermost(visit: Visit) -> Visit:
    while visit.caller is not None:
        visit = visit.caller
    return visit


def _profile(program: ExportedProgram, topology: Topology) -> DeviceProfile:
    """Return the profile of the device with which the stages are balanced."""
    devices = [topology.device(name) for name in devices_of_program(program) if topology.has_device(name)]
    return next((d.profile for d in devices if d.type != "cpu"), topology.devices[0].profile)


def _seconds(profile: DeviceProfile, flops: Mapping[str, int], read_bytes: int) -> float:
    """Return a lower bound of a stage's time. If the rates are unknown, bytes count as seconds."""
    compute = [
        count / rate for dtype, count in flops.items() if (rate := fastest_rate(dtype, profile.peak_flops))
    ]
    bandwidth = profile.memory_bandwidth_bytes_per_s
    return max([*compute, read_bytes / (bandwidth or 1)])
