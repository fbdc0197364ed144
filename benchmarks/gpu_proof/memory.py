"""Step: compare planned with allocated memory, and the time of each call with its planned lower bound.

The plan is compared with torch and the driver: its tensors and workspaces with `max_memory_allocated`, the
memory that the caching allocator reserves for them with `max_memory_reserved`, and its total with the memory
in use according to `mem_get_info`.
"""

from __future__ import annotations

import functools
import gzip
import json
import statistics
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from benchmarks.gpu_proof.parts import Part, run_in_turn, turn
from benchmarks.gpu_proof.run import Run

LEVELS = ("allocated", "reserved", "device")
_TIMED = 6
_KERNELS_SHOWN = 12


@dataclass(frozen=True)
class Case:
    """One call of one model.

    Args:
        source: Source for `fakexport plan`.
        workload: `forward`, `prefill` or `decode`.
        batch, context: Sizes; context is None for images.
        dtype: Dtype of the weights.
    """

    source: str
    workload: Any
    batch: int
    context: int = 16
    dtype: str = "bfloat16"


_LLAMA = "hf:examples/configs/llama-3.2-1b.json"
_LARGE = "hf:examples/configs/llama-3.1-8b.json"
CASES: Mapping[str, Case] = {
    "gpt2-forward": Case("hf:gpt2", "forward", 8, 512),
    "gpt2-prefill": Case("hf:gpt2", "prefill", 8, 512),
    "gpt2-decode": Case("hf:gpt2", "decode", 32, 1024),
    "bert-forward": Case("hf:bert", "forward", 32, 512),
    "bert-forward-float32": Case("hf:bert", "forward", 32, 512, "float32"),
    "t5-forward": Case("hf:t5", "forward", 8, 256),
    "vit-forward": Case("hf:vit", "forward", 64),
    "resnet-forward": Case("hf:resnet", "forward", 64),
    "whisper-forward": Case("hf:whisper", "forward", 16),
    "qwen2-moe-prefill": Case("hf:qwen2_moe", "prefill", 1, 512),
    "llama-1b-forward": Case(_LLAMA, "forward", 4, 2048),
    "llama-1b-prefill": Case(_LLAMA, "prefill", 1, 8192),
    "llama-1b-decode": Case(_LLAMA, "decode", 16, 8192),
    "llama-8b-prefill": Case(_LARGE, "prefill", 1, 4096),
    "llama-8b-decode": Case(_LARGE, "decode", 8, 4096),
}


def step(run: Run) -> None:
    """Run each planned program in a process with exclusive use of the GPU."""
    run_in_turn(run, [Part("memory", "measure", name, limit_s=60) for name in run.chosen(CASES)])


def files_of(run: Run, name: str) -> tuple[Path, Path]:
    """Return the paths of a case's program and plan."""
    folder = run.made / "plans"
    return folder / f"{name}.pt2", folder / f"{name}.json"


def plan(run: Run, name: str) -> dict[str, Any]:
    """Export and plan a case under emulation, and write the program and the plan."""
    archive, out = files_of(run, name)
    archive.parent.mkdir(parents=True, exist_ok=True)
    found = planned(CASES[name], run.profile, archive)
    out.write_text(json.dumps(found))
    return {"bytes": archive.stat().st_size}


def planned(case: Case, target: str, archive: Path) -> dict[str, Any]:
    """Return the plan of the only device of a case, and the lower bound on the time of a call in seconds.

    Args:
        target: The device to emulate.
        archive: Path to write the program to.
    """
    import fakexport as fe
    from fakexport.models.sources import Workload, resolve
    from fakexport.report import to_dict

    source = resolve(case.source, workload=Workload(case.workload, case.batch, case.context))
    program = fe.export(source, target=target, dtype=getattr(torch, case.dtype))
    report = fe.plan(program)
    (device,) = to_dict(report)["points"][0]["devices"]
    costs = report.points[0].costs
    _flatten(program)
    fe.save(program, archive)
    return {"device": device, "bound_s": None if costs is None else costs.least_seconds}


def _flatten(program: ExportedProgram) -> None:
    """Make a program accept and return plain tuples, because an archive cannot store a cache object."""
    signature = program.module_call_graph[0].signature
    assert signature is not None
    given, returned = ((None,) * spec.num_leaves for spec in (signature.in_spec, signature.out_spec))
    signature.in_spec = _leaves_of((given, {}))
    signature.out_spec = _leaves_of(returned)
    signature.forward_arg_names = None


def _leaves_of(structure: Any) -> Any:
    return pytree.tree_structure(pytree.tree_map(lambda leaf: 0, structure, is_leaf=lambda x: x is None))


def measure(run: Run, name: str) -> dict[str, Any]:
    """Call a program with random weights, and compare memory and time with its plan."""
    import fakexport as fe

    archive, out = files_of(run, name)
    found = json.loads(out.read_text())
    program = fe.load(archive)
    turn()
    if run.is_pretend:
        return {"planned": intervals(found["device"]), "bound_s": found["bound_s"]}
    assert not torch.cuda.is_initialized(), "loading the program used the GPU"
    before = used_bytes()
    call = call_of(program, run.device)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=200_000, context=None)
    with torch.no_grad():
        result = call()
    torch.cuda.synchronize()
    measured = measured_bytes(before)
    _write_allocations(run, name)
    del result
    run.record("memory", name, **compared(found["device"], measured))
    return _timed(call, found["bound_s"])


def used_bytes() -> int:
    """Return the bytes of the GPU that other processes use, in MiB steps. 0 if `nvidia-smi` is missing."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        return int(done.stdout.split()[0]) << 20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


def measured_bytes(before: int) -> dict[str, int]:
    """Return the bytes of each measured quantity since `reset_peak_memory_stats`."""
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "device": total - free - before,
    }


def _write_allocations(run: Run, name: str) -> None:
    """Write each action of the allocator, to explain a difference."""
    traces = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(enabled=None)
    events = [[event["action"], event["size"]] for event in (traces[0] if traces else [])]
    path = run.work / "memory" / f"{name}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(events).encode()))


def _timed(call: Callable[[], Any], bound_s: float | None) -> dict[str, Any]:
    """Return the time of later calls, the bound, and the kernels that take the most time."""
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        times = [milliseconds(call) for _ in range(_TIMED)]
        second = torch.cuda.max_memory_allocated()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
            call()
            torch.cuda.synchronize()
    kernels: dict[str, list[float]] = {}
    for event in recorded.events():
        if str(event.device_type).endswith("CUDA"):
            kernels.setdefault(event.name[:100], []).append(event.device_time)
    longest = sorted(((round(sum(us)), len(us), name) for name, us in kernels.items()), reverse=True)
    median = statistics.median(times[1:])
    return {
        "ok": None if bound_s is None else median >= bound_s * 1e3,
        "milliseconds": round(median, 3), "first_milliseconds": round(times[0], 3),
        "bound_milliseconds": None if bound_s is None else round(bound_s * 1e3, 3),
        "allocated_of_later_calls": second, "kernels": longest[:_KERNELS_SHOWN],
    }  # fmt: skip


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the time of a call on the GPU."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def intervals(device: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the minimum and maximum bytes that a plan gives for each quantity.

    Args:
        device: A device in the output of `fakexport plan --format json`.
    """
    outside = [o["bytes"] for o in device["overheads"] if not o["is_allocated"]]
    lower, upper = (device["total"][end] - sum(size[end] for size in outside) for end in ("lower", "upper"))
    return {
        "allocated": (device["allocated_bytes"], device["allocated_bytes"]),
        "reserved": (lower, upper),
        "device": (device["total"]["lower"], device["total"]["upper"]),
    }


def error_of(interval: tuple[int, int], measured: int) -> float:
    """Return the relative error of a plan: negative if it is too low, 0 if `measured` is in the interval."""
    lower, upper = interval
    return min(0, upper - measured) / measured if measured > upper else max(0, lower - measured) / measured


def compared(device: Mapping[str, Any], measured: Mapping[str, int]) -> dict[str, Any]:
    """Return the planned interval, the measurement and the error of each quantity."""
    found = intervals(device)
    errors = {level: error_of(found[level], measured[level]) for level in LEVELS}
    return {"ok": not any(errors.values()), "planned": found, "measured": dict(measured), "error": errors}


def call_of(program: ExportedProgram, device: str) -> Any:
    """Return a call of a program, with random weights and inputs of its sizes.

    Args:
        device: Device of the weights and inputs, which must be that of the program.
    """
    import fakexport as fe
    from benchmarks.plan_accuracy import call_arguments
    from fakexport.exporting.program import tensor_identity

    weights, made = {}, {}
    for name, value in program.state_dict.items():
        if (key := tensor_identity(value)) not in made:  # Tied weights have one value.
            made[key] = _random(name, value, device)
        weights[name] = made[key]
    bound = fe.bind(program, weights, check_finite=False)
    del weights, made
    args, kwargs = call_arguments(bound, _inputs(bound, device))
    return functools.partial(bound.module(), *args, **kwargs)


def _inputs(program: ExportedProgram, device: str) -> dict[str, torch.Tensor]:
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    names = [str(name) for name in program.graph_signature.user_inputs if isinstance(name, str)]
    return {
        name: _random(name, values[name], device)
        for name in names
        if isinstance(values.get(name), torch.Tensor)
    }


def _random(name: str, like: torch.Tensor, device: str) -> torch.Tensor:
    """Return small random numbers. Integers are in every vocabulary, and a mask has no padding."""
    shape, where = tuple(map(int, like.shape)), device if like.device.type != "cpu" else "cpu"
    if like.dtype.is_floating_point:
        return torch.empty(shape, dtype=like.dtype, device=where).normal_(0, 0.02)
    return torch.full(shape, int("mask" in name), dtype=like.dtype, device=where)


PARTS = {"plan": plan, "measure": measure}
