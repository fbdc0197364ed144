"""Detect weights that exceed the memory of their device: FE503."""

from __future__ import annotations

from collections import Counter

from fakexport.devices import Topology
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import ProgramSummary
from fakexport.rules import rule


def diagnose_memory(summary: ProgramSummary, topology: Topology) -> Diagnostic | None:
    """Return whether some device has less memory than the parameters and buffers placed on it.

    Reports:
        FE503, once, with the worst device; the host's memory is not assumed.
    """
    placed = Counter[str]()
    for totals in (summary.parameters, summary.buffers):
        placed.update(totals.bytes_per_device)
    over = [
        (weight_bytes / memory, device, weight_bytes, memory)
        for device, weight_bytes in sorted(placed.items())
        if topology.has_device(device) and (memory := topology.device(device).profile.memory_bytes)
        if weight_bytes > memory
    ]
    if not over:
        return None
    _, device, weight_bytes, memory = max(over, key=lambda item: item[0])
    profile = topology.device(device).profile
    return rule("FE503").diagnostic(
        notes=(
            f"{device} ({profile.name}) has {_gibibytes(memory)}, the weights placed on it need "
            f"{_gibibytes(weight_bytes)}",
            f"{len(over)} of {len(topology.accelerators)} devices have too little memory; all weights "
            f"together need {_gibibytes(sum(placed.values()))}",
        ),
        fix=Fix("use more or larger devices, or a smaller dtype"),
    )


def _gibibytes(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
