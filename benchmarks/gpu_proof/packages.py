"""Step: check that AOTInductor packages built without a GPU load on it, match eager mode, and are fast.

To compare times, stock torch builds them on the GPU too, and `fakexport compile --tune` times their kernels.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_proof.memory import milliseconds
from benchmarks.gpu_proof.parts import Part, run_in_turn, turn
from benchmarks.gpu_proof.programs import model_on
from benchmarks.gpu_proof.run import Run

_SOURCE = "benchmarks/gpu_proof/package_models.py"
_REPEATS, _WARM_UP = 50, 10
_TIMES_EAGER = 4
"""Largest allowed error of a package relative to float64, as a multiple of the error of eager mode."""


@dataclass(frozen=True)
class Case:
    """One package.

    Args:
        dtype: Dtype of the weights.
        dynamic: Value of `dynamic_shapes`.
        shapes: Input shape of each call. The last call is timed.
        tolerance: The largest error relative to float64 that passes.
    """

    dtype: str
    dynamic: str | None
    shapes: tuple[tuple[int, ...], ...]
    tolerance: float


CASES = {
    "mlp": Case("float32", None, ((64, 1024),), 1e-3),
    "block": Case("bfloat16", None, ((8, 512, 1024),), 2e-2),
    "llama": Case("bfloat16", "auto", ((2, 64), (3, 7), (5, 333), (4, 512)), 2e-2),
}


def step(run: Run) -> None:
    """Check and time each package in a process with exclusive use of the GPU."""
    run_in_turn(run, [Part("packages", "check", name, limit_s=60) for name in run.chosen(CASES)])


def path_of(run: Run, name: str) -> Path:
    """Return the path of the package that is built without a GPU."""
    return run.made / "packages" / f"{name}.aoti.pt2"


def tuned_path_of(run: Run, name: str) -> Path:
    """Return the path of the package whose kernels are timed on the GPU."""
    return run.work / "tuned_packages" / f"{name}.aoti.pt2"


def stock_path_of(run: Run, name: str) -> Path:
    """Return the path of the package that stock torch builds on the GPU."""
    return run.work / "stock_packages" / f"{name}.pt2"


def build(run: Run, name: str) -> dict[str, Any]:
    """Build a package with the GPU hidden."""
    return _built(run, name, path_of(run, name))


def build_here(run: Run, name: str) -> dict[str, Any]:
    """Build a package on the machine that has the GPU, to compare the time with that of a stock build."""
    return _built(run, name, run.work / "packages" / f"{name}.aoti.pt2")


def build_tuned(run: Run, name: str) -> dict[str, Any]:
    """Build a package whose kernels are timed on the GPU."""
    return _built(run, name, tuned_path_of(run, name), "--tune")


def build_stock(run: Run, name: str) -> dict[str, Any]:
    """Build a package with stock torch from a program with weights on the GPU."""
    from fakexport.models.sources import resolve

    case, package = CASES[name], stock_path_of(run, name)
    package.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, args, kwargs = model_on(resolve(f"{_SOURCE}:{name}"), run.device, getattr(torch, case.dtype))
    shapes = ((Dim.AUTO, Dim.AUTO),) if case.dynamic else None
    program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    begun = time.monotonic()
    torch._inductor.aoti_compile_and_package(program, package_path=str(package))
    return {"bytes": package.stat().st_size, "compile_seconds": round(time.monotonic() - begun, 1)}


def _built(run: Run, name: str, package: Path, *options: str) -> dict[str, Any]:
    import fakexport as fe

    case = CASES[name]
    archive = package.with_name(f"{name}.pt2")
    package.parent.mkdir(parents=True, exist_ok=True)
    program = fe.export(
        f"{_SOURCE}:{name}", target=run.profile, dtype=case.dtype, device_map="cuda:0",
        dynamic_shapes=case.dynamic,
    )  # fmt: skip
    fe.save(program, archive)
    command = [sys.executable, "-m", "fakexport", "compile", archive, "--to", "aoti", "--target", run.profile]
    command += [*options, "--weights", "beside", "-o", package]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-3000:]}")
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    output = done.stdout.strip().rpartition("/")[2]
    return {"bytes": package.stat().st_size, "output": output, "notes": notes}


def check(run: Run, name: str) -> dict[str, Any]:
    """Compare a package with eager mode and float64, and time it and the packages built on this GPU."""
    from fakexport.deploy.aoti import open_aoti
    from fakexport.models.sources import resolve

    case = CASES[name]
    source = resolve(f"{_SOURCE}:{name}")
    turn()
    if run.is_pretend:
        return {"bytes": path_of(run, name).stat().st_size}
    torch.manual_seed(0)
    model, _, _ = model_on(source, run.device, getattr(torch, case.dtype))
    exact = copy.deepcopy(model).double()
    package = open_aoti(path_of(run, name), checkpoint=dict(model.state_dict()))
    (wanted,) = (tensor.name for tensor in package.signature.inputs)
    for shape in case.shapes:
        x = _input(shape, case, run.device)
        with torch.no_grad():
            eager = model(x)
            right = exact(x.double() if x.is_floating_point() else x)
        (got,) = package({wanted: x}).values()
        own, error = (float((one.double() - right).abs().max()) for one in (eager, got))
        is_right = got.shape == eager.shape and got.dtype == eager.dtype
        is_right = is_right and error <= max(_TIMES_EAGER * own, case.tolerance)
        run.record("packages", name, ok=is_right, shape=shape, error_to_float64=error, eager_to_float64=own)
    del exact
    with torch.no_grad():
        run.record("packages", name, part="eager", **_times(lambda: model(x)))
    run.record("packages", name, part="built without the GPU", **_times(lambda: package({wanted: x})))
    found: dict[str, Any] = {}
    if tuned_path_of(run, name).exists():
        tuned = open_aoti(tuned_path_of(run, name), checkpoint=dict(model.state_dict()))
        (other,) = tuned({wanted: x}).values()
        run.record("packages", name, part="tuned", **_times(lambda: tuned({wanted: x})))
        found["difference_of_tuned"] = float((other.double() - got.double()).abs().max())
    if stock_path_of(run, name).exists():
        stock = torch._inductor.aoti_load_package(str(stock_path_of(run, name)))
        run.record("packages", name, part="stock", **_times(lambda: stock(x)))
    return found


def _input(shape: tuple[int, ...], case: Case, device: str) -> torch.Tensor:
    if len(shape) == 2 and case.dynamic:
        return torch.randint(0, 8192, shape, device=device)
    return torch.randn(shape, device=device).to(getattr(torch, case.dtype))


def _times(call: Callable[[], Any]) -> dict[str, Any]:
    """Return the median time of a call, and the time of each kernel."""
    for _ in range(_WARM_UP):
        call()
    times = sorted(milliseconds(call) * 1e3 for _ in range(_REPEATS))
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    kernels = {
        event.key[:100]: round(event.self_device_time_total, 1)
        for event in recorded.key_averages()
        if event.self_device_time_total
    }
    return {"microseconds": round(times[len(times) // 2], 1), "kernels": kernels}


PARTS = {
    "build": build,
    "build_here": build_here,
    "build_stock": build_stock,
    "build_tuned": build_tuned,
    "check": check,
}
