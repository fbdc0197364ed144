"""Find devices whose memory is too small for the weights and the peak of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.tracing.symbolic_numbers import hint_of
from fakexport.emulation.devices import Topology
from fakexport.error import InvalidValue
from fakexport.exporting.program import ProgramSummary, facts_of, operator_name, tensors_in, walk
from fakexport.files.documents import ParallelRecord
from fakexport.planning.memory import ProgramSizes, SizeRequest, liveness, overheads, sizes_at
from fakexport.report.diagnose import labels_at
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix

_FLOAT32_BYTES = 4
_SHARE_OF_TEMPORARIES = 2
_GIB = 2**30


def diagnose_memory(
    program: ExportedProgram, summary: ProgramSummary, topology: Topology
) -> Diagnostic | None:
    """Return a diagnostic if a device has too little memory for its weights, or for a run of the program.

    Reports:
        FE503 or FE506, once, for the device that exceeds its memory the most. The host is not checked, as its
            memory is unknown.
    """
    placed = Counter(summary.parameters.bytes_per_device)
    placed.update(summary.buffers.bytes_per_device)
    memory = _memory(summary, topology)
    over = [(placed[device] / size, device) for device, size in memory.items() if placed[device] > size]
    if over:
        device, rank = max(over)[1], facts_of(program).parallel
        if rank is not None:
            return _of_rank(device, placed[device], topology, rank)
        return _weights(device, placed, topology, len(over))
    return _run(program, topology, memory) if _may_exceed(program, placed, memory) else None


def memory_left(summary: ProgramSummary, topology: Topology) -> dict[str, int]:
    """Return how many bytes of each device, but not of the host, remain after weights and constants."""
    placed = summary.held_bytes()
    return {device: size - placed[device] for device, size in _memory(summary, topology).items()}


def _memory(summary: ProgramSummary, topology: Topology) -> dict[str, int]:
    """Map each device that the program uses to its memory in bytes; omit devices of unknown memory."""
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
            f"{device} ({profile.name}) has {memory}; the weights placed on it need "
            f"{_gibibytes(placed[device])}",
            f"{count} of {len(topology.accelerators)} devices have too little memory; all weights "
            f"together need {_gibibytes(sum(placed.values()))}",
        ),
        fix=Fix("use more devices, devices with more memory, or a smaller dtype"),
    )


def _of_rank(device: str, placed: int, topology: Topology, rank: ParallelRecord) -> Diagnostic:
    profile = topology.device(device).profile
    return rule("FE503").diagnostic(
        notes=(
            f"{profile.name} has {_gibibytes(profile.memory_bytes or 0)}; the weights of rank "
            f"{rank.rank} of {rank.ranks} need {_gibibytes(placed)}",
        ),
        fix=Fix("use more ranks (`--parallel tp=N`), devices with more memory, or a smaller dtype"),
    )


def _may_exceed(program: ExportedProgram, placed: Mapping[str, int], memory: Mapping[str, int]) -> bool:
    """Return whether a device may be too small. This fast check often avoids the slow liveness analysis.

    It assumes that all values are live at once, plus attention scores in float32, and doubles the sum to
    allow for temporary memory of operators.
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
    """Map an attention operator's device to the bytes of its scores in float32; {} for other operators."""
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
    except InvalidValue:  # A size is known only at run time: `fakexport plan` asks for its bound.
        return None
    sizes = sizes_at(found, chosen.values)
    loads = []
    for device, size in memory.items():
        peak = sizes.peak(device, largest=1)
        process = sum(one.bytes.lower for one in overheads(topology.device(device).profile, multiplies=False))
        loads.append(((peak.bytes + process) / size, process, peak))
    load, process, peak = max(loads, key=lambda item: item[0])
    if load <= 1 or peak.step is None:
        return None
    profile = topology.device(peak.device).profile
    largest = peak.largest[0]
    return rule("FE506").diagnostic(
        labels=labels_at(peak.step.span, f"{_gibibytes(peak.bytes)} in use while this runs"),
        notes=(
            f"{peak.device} ({profile.name}) has {_gibibytes(memory[peak.device])}; the run needs "
            f"{_gibibytes(peak.held_bytes)} for weights and inputs, {_gibibytes(peak.run_bytes)} for "
            f"other tensors at its peak, and at least {_gibibytes(process)} for the device context of the "
            "process",
            f"the largest tensor at the peak is {largest.storage.name}, {_gibibytes(largest.bytes)}; "
            f"the peak is in {peak.step.operator}",
        ),
        fix=Fix(
            "use smaller inputs, more devices, devices with more memory, or a smaller dtype: "
            "`fakexport plan` shows what fits"
        ),
        module_path=peak.step.module_path or None,
    )


def _gibibytes(count: float) -> str:
    return f"{count / _GIB:.1f} GiB"
