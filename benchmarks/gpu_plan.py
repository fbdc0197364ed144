"""Does a GPU hold what the plan says? Allocated, reserved and device-wide memory of real calls.

On a machine with an NVIDIA GPU, each case is exported and planned in a process without the device, and its
program runs once in another process on the device, with random weights. What torch and the driver report is
compared with the plan: `max_memory_allocated` with tensors and workspaces, `max_memory_reserved` with what
the caching allocator takes for them, and what `mem_get_info` says is gone with the total.

    python -m benchmarks.gpu_plan                       compare, and write build/gpu_plan.json
    python -m benchmarks.gpu_plan --cases gpt2-forward  only these

Exit code 0: everything measured is within the intervals. 1: something is not, or a case did not run. 2: there
is no device, or no profile for it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from benchmarks.gpu_fidelity import device_and_profile

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 600
LEVELS = ("allocated", "reserved", "device")


@dataclass(frozen=True)
class Case:
    """One call of one model.

    Args:
        source: As `fakexport plan` takes it.
        workload: `forward`, `prefill` or `decode`.
        batch, context: Sizes; images have no context.
        dtype: That of the weights.
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


def planned(case: Case, profile: str, archive: Path) -> dict[str, Any]:
    """Return the plan of a case on one device, and write its program.

    Args:
        case: What is called.
        profile: The device; it is emulated.
        archive: Gets the program.
    """
    import fakexport as fe
    from fakexport.models.sources import Workload, resolve
    from fakexport.report import to_dict

    source = resolve(case.source, workload=Workload(case.workload, case.batch, case.context))
    program = fe.export(source, target=profile, dtype=getattr(torch, case.dtype))
    (device,) = to_dict(fe.plan(program))["points"][0]["devices"]
    _flatten(program)
    fe.save(program, archive)
    found: dict[str, Any] = device
    return found


def _flatten(program: ExportedProgram) -> None:
    """Let a program take and return plain tuples: a cache among the inputs has no place in an archive."""
    signature = program.module_call_graph[0].signature
    assert signature is not None
    given, returned = ((None,) * spec.num_leaves for spec in (signature.in_spec, signature.out_spec))
    signature.in_spec = _leaves_of((given, {}))
    signature.out_spec = _leaves_of(returned)
    signature.forward_arg_names = None


def _leaves_of(structure: Any) -> Any:
    return pytree.tree_structure(pytree.tree_map(lambda leaf: 0, structure, is_leaf=lambda x: x is None))


def intervals(device: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return what a plan says of each level: the least and the most bytes.

    Args:
        device: One device of a point, as `fakexport plan --format json` writes it.
    """
    outside = [o["bytes"] for o in device["overheads"] if not o["is_allocated"]]
    lower, upper = (device["total"][end] - sum(size[end] for size in outside) for end in ("lower", "upper"))
    return {
        "allocated": (device["allocated_bytes"], device["allocated_bytes"]),
        "reserved": (lower, upper),
        "device": (device["total"]["lower"], device["total"]["upper"]),
    }


def error_of(interval: tuple[int, int], measured: int) -> float:
    """Return how far a plan is off, over what was measured: negative where it is too low, 0 within."""
    lower, upper = interval
    return min(0, upper - measured) / measured if measured > upper else max(0, lower - measured) / measured


def call_of(archive: Path, device: str) -> Any:
    """Return a call of the program in an archive, with random weights and inputs of its sizes.

    Args:
        archive: As `planned` writes it.
        device: Where the weights and inputs are: that of the program.
    """
    import fakexport as fe
    from benchmarks.plan_accuracy import call_arguments

    program = fe.load(archive)
    weights = {name: _random(name, value, device) for name, value in program.state_dict.items()}
    bound = fe.bind(program, weights, check_finite=False)
    del weights
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
    """Return small numbers; of integers those that are in every vocabulary, and no padding in a mask."""
    shape, where = tuple(map(int, like.shape)), device if like.device.type != "cpu" else "cpu"
    if like.dtype.is_floating_point:
        return torch.empty(shape, dtype=like.dtype, device=where).normal_(0, 0.02)
    return torch.full(shape, int("mask" in name), dtype=like.dtype, device=where)


def measured(archive: Path, before: int) -> dict[str, int]:
    """Run a program once on the GPU and return the bytes of each level.

    Args:
        archive: As `planned` writes it.
        before: Bytes of the device that were taken before this process began.
    """
    call = call_of(archive, "cuda:0")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        result = call()
    torch.cuda.synchronize()
    del result
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "device": total - free - before,
    }


def _in_a_process(arguments: Sequence[str], out: Path, *, is_visible: bool) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    if not is_visible:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", "benchmarks.gpu_plan", *arguments, "--out", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"process ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def row_of(name: str, profile: str) -> dict[str, Any]:
    """Plan a case and run it, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        archive, out = Path(folder) / "model.pt2", Path(folder) / "found.json"
        given = ["--case", name, "--archive", str(archive)]
        try:
            plan = _in_a_process([*given, "--profile", profile], out, is_visible=False)
            free, total = torch.cuda.mem_get_info()
            found = _in_a_process([*given, "--before", str(total - free)], out, is_visible=True)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return {"case": name, "failure": str(error)}
    return compared(name, plan, found)


def compared(name: str, plan: Mapping[str, Any], found: Mapping[str, int]) -> dict[str, Any]:
    """Return the row of a case: the interval, what was measured and the error of each level."""
    planned_bytes = intervals(plan)
    return {
        "case": name,
        "planned": {level: list(planned_bytes[level]) for level in LEVELS},
        "measured": dict(found),
        "error": {level: error_of(planned_bytes[level], found[level]) for level in LEVELS},
    }


def table(rows: Sequence[Mapping[str, Any]], device: str) -> str:
    """Return the rows as a Markdown table, and a line of errors for each level."""
    lines = [f"{device}: what the plan says, what was measured, and the error (negative: too low)", ""]
    lines += ["| case | " + " | ".join(LEVELS) + " |", "|---" * (len(LEVELS) + 1) + "|"]
    for row in rows:
        if "failure" in row:
            lines.append(f"| {row['case']} | did not run: {row['failure']} |" + " |" * (len(LEVELS) - 1))
            continue
        cells = [
            _cell(row["planned"][level], row["measured"][level], row["error"][level]) for level in LEVELS
        ]
        lines.append(f"| {row['case']} | " + " | ".join(cells) + " |")
    ran = [row for row in rows if "failure" not in row]
    for level in LEVELS if ran else ():
        errors = [row["error"][level] for row in ran]
        sizes = sorted(map(abs, errors))
        late = sizes[int(0.95 * (len(sizes) - 1))]
        low = sum(error < -0.01 for error in errors) / len(errors)
        lines.append(
            f"\n{level}: median error {statistics.median(sizes):.1%}, 95th percentile {late:.1%}, too low by "
            f"more than 1 % in {low:.0%} of {len(ran)} cases"
        )
    return "\n".join(lines)


def _cell(interval: Sequence[int], size: int, error: float) -> str:
    lower, upper = (f"{end / 2**30:.3f}" for end in interval)
    planned_text = lower if lower == upper else f"{lower} to {upper}"
    return f"{planned_text}; {size / 2**30:.3f} GiB; {error:+.1%}"


def main() -> int:
    """Print the table and write the rows, or do the part of one process."""
    parser = argparse.ArgumentParser(description="Compares plans with real calls on a GPU.")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("build/gpu_plan.json"))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--archive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--profile", help=argparse.SUPPRESS)
    parser.add_argument("--before", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        is_planned = options.profile is not None
        found = (
            planned(CASES[options.case], options.profile, options.archive)
            if is_planned
            else measured(options.archive, options.before)
        )
        options.out.write_text(json.dumps(found))
        return 0
    try:
        device, profile = device_and_profile()
    except LookupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = [row_of(name, profile) for name in options.cases]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"device": device, "torch": torch.__version__, "rows": rows}, indent=2))
    print(table(rows, device))
    return 0 if all("failure" not in row and not any(row["error"].values()) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
