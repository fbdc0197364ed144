"""Find devices whose memory is not enough for weights and what a run adds to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.symbolic_numbers import hint_of
from fakexport.devices import Topology
from fakexport.diagnose.labels import labels_at
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.documents import ParallelRecord
from fakexport.error import InvalidValue
from fakexport.memory import ProgramSizes, SizeRequest, liveness, overheads, sizes_at
from fakexport.program import ProgramSummary, TensorTotals, facts_of, operator_name, tensors_in, walk
from fakexport.rules import rule

_FLOAT32_BYTES = 4
_SHARE_OF_TEMPORARIES = 2
_GIB = 2**30


def diagnose_memory(
    program: ExportedProgram, summary: ProgramSummary, topology: Topology
) -> Diagnostic | None:
    """Return whether some device has too little memory: for the weights placed on it, or for a run.

    Reports:
        FE503 or FE506, once, with the worst device; the host's memory is not assumed.
    """
    placed = _placed(summary.parameters, summary.buffers)
    memory = _memory(summary, topology)
    over = [(placed[device] / size, device) for device, size in memory.items() if placed[device] > size]
    if over:
        device, rank = max(over)[1], facts_of(program).parallel
        if rank is not None:
            return _of_rank(device, placed[device], topology, rank)
        return _weights(device, placed, topology, len(over))
    return _run(program, topology, memory) if _may_exceed(program, placed, memory) else None


def memory_left(summary: ProgramSummary, topology: Topology) -> dict[str, int]:
    """Return for each device what of its memory the weights and constants on it leave for a run.

    Returns:
        Device -> bytes, negative where they do not fit; without the host, whose memory is not assumed.
    """
    placed = _placed(summary.parameters, summary.buffers, summary.constants)
    return {device: size - placed[device] for device, size in _memory(summary, topology).items()}


def _placed(*totals: TensorTotals) -> Counter[str]:
    placed = Counter[str]()
    for own in totals:
        placed.update(own.bytes_per_device)
    return placed


def _memory(summary: ProgramSummary, topology: Topology) -> dict[str, int]:
    """Return the memory of each device that a program uses, as far as it is known."""
    return {
        device: size
        for device in summary.devices
        if topology.has_device(device) and (size := topology.device(device).profile.memory_bytes)
    }


def _weights(device: str, placed: Mapping[str, int], topology: Topology, count: int) -> Diagnostic:
    profile = topology.device(device).profile
    memory = _gibibytes(profile.memory_bytes or 0)
    return rule("FE503").diagnostic(
        notes=(
            f"{device} ({profile.name}) has {memory}, the weights placed on it need "
            f"{_gibibytes(placed[device])}",
            f"{count} of {len(topology.accelerators)} devices have too little memory; all weights "
            f"together need {_gibibytes(sum(placed.values()))}",
        ),
        fix=Fix("use more or larger devices, or a smaller dtype"),
    )


def _of_rank(device: str, placed: int, topology: Topology, rank: ParallelRecord) -> Diagnostic:
    profile = topology.device(device).profile
    return rule("FE503").diagnostic(
        notes=(
            f"{profile.name} has {_gibibytes(profile.memory_bytes or 0)}, the weights of rank {rank.rank} of "
            f"{rank.ranks} need {_gibibytes(placed)}",
        ),
        fix=Fix("use a higher degree, larger devices, or a smaller dtype"),
    )


def _may_exceed(program: ExportedProgram, placed: Mapping[str, int], memory: Mapping[str, int]) -> bool:
    """Return whether a device might be too small: reading lifetimes takes seconds for a large program.

    All values together, with as much again for what operators take themselves, are taken for more than is
    ever held. Attention may hold its scores, which no value shows.
    """
    values = Counter[str]()
    for visit in walk(program):
        values.update(_scores(visit.node))
        for tensor in tensors_in(visit.node.meta.get("val")):
            size = _hinted(tensor.numel())
            if size is None and str(tensor.device) in memory:
                return True
            values[str(tensor.device)] += (size or 0) * tensor.itemsize
    return any(
        placed[device] + _SHARE_OF_TEMPORARIES * values[device] > size for device, size in memory.items()
    )


def _scores(node: Node) -> dict[str, int]:
    """Return the bytes of the scores of an attention operator in float32, by device."""
    if "attention" not in operator_name(node):
        return {}
    query, key, *_ = (*tensors_in([source.meta.get("val") for source in node.all_input_nodes]), None, None)
    if query is None or key is None or query.dim() < 2 or key.dim() < 2:
        return {}
    rows, columns = _hinted(query.numel() // query.shape[-1]), _hinted(key.shape[-2])
    return {str(query.device): _FLOAT32_BYTES * (rows or 0) * (columns or 0)}


def _hinted(size: int | torch.SymInt) -> int | None:
    return hint_of(size) if isinstance(size, torch.SymInt) else size


def _run(program: ExportedProgram, topology: Topology, memory: Mapping[str, int]) -> Diagnostic | None:
    found = liveness(program, topology=topology)
    try:
        chosen = ProgramSizes(program, needed=found.symbols).chosen(SizeRequest())
    except InvalidValue:  # A size that only a run tells: `fakexport plan` asks for a bound.
        return None
    sizes = sizes_at(found, chosen.values)
    loads = []
    for device, size in memory.items():
        peak = sizes.peak(device, largest=1)
        process = sum(one.lower for one in overheads(topology.device(device).profile, multiplies=False))
        loads.append(((peak.bytes + process) / size, process, peak))
    load, process, peak = max(loads, key=lambda item: item[0])
    if load <= 1 or peak.step is None:
        return None
    profile = topology.device(peak.device).profile
    largest = peak.largest[0]
    return rule("FE506").diagnostic(
        labels=labels_at(peak.step.span, f"{_gibibytes(peak.bytes)} are held while this runs"),
        notes=(
            f"{peak.device} ({profile.name}) has {_gibibytes(memory[peak.device])}; needed are "
            f"{_gibibytes(peak.held_bytes)} for weights and inputs, {_gibibytes(peak.run_bytes)} for the run "
            f"at its peak, and at least {_gibibytes(process)} for the process",
            f"the largest value there is {largest.storage.name}, {_gibibytes(largest.bytes)}; the peak is in "
            f"{peak.step.operator}",
        ),
        fix=Fix(
            "use smaller inputs, more or larger devices, or a smaller dtype: `fakexport plan` tells what fits"
        ),
        module_path=peak.step.module_path or None,
    )


def _gibibytes(count: float) -> str:
    return f"{count / _GIB:.1f} GiB"
