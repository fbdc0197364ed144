"""Run the steps, the most important first, until all are done or the time is up."""

from __future__ import annotations

import argparse
import compileall
import os
import signal
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu_proof import (
    harm,
    memory,
    native,
    packages,
    programs,
    small_packages,
    smoke,
    training,
    values,
)
from benchmarks.gpu_proof.parts import end_all
from benchmarks.gpu_proof.run import LIMIT_S, ROOT, Run
from benchmarks.gpu_proof.summary import is_all_right, summary

# The steps of a group run in parallel. The number is a step's time limit in seconds, in a run of `LIMIT_S`.
GROUPS: tuple[dict[str, float], ...] = (
    {"smoke": 100},
    {"prepare": 150},
    {"facts": 45},
    {"attention": 95},
    {"fidelity": 210, "native": 200},
    {"memory": 110},
    {"packages": 60},
    {"small_packages": 60},
    {"values": 80},
    {"harm": 90},
    {"training": 70},
)
_WITH_CASES = (programs, native, memory, packages, small_packages, values, harm, training)
STEPS = tuple(name for group in GROUPS for name in group)
_NO_DEVICE, _NO_SMOKE = 2, 3
_NO_LIMIT_S = 1e6
_FOLDER = ROOT / "build" / "gpu_proof"
_OUT = os.environ.get("OUT")
"""Folder whose files a device machine returns. It returns few files, so most files are written elsewhere."""


def main(given: Sequence[str] | None = None) -> int:
    """Run the steps.

    Returns:
        0: all results of fakexport are confirmed. 1: a result differs, or a step failed. 2: no device, or no
        profile for it. 3: a small model failed, so the other steps did not run.
    """
    parser = argparse.ArgumentParser(description="Compares what fakexport says with what a GPU does.")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="only these steps")
    parser.add_argument("--cases", nargs="+", default=[], help="only these cases of a step")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all steps; 0: no limit")
    parser.add_argument("--pretend", action="store_true", help="without a GPU, as far as each step goes")
    parser.add_argument("--profile", default="H100-80GB", help="with --pretend: the GPU to emulate")
    parser.add_argument("--jobs", type=int, default=max(2, (os.cpu_count() or 4) - 3))
    parser.add_argument("--out", type=Path, default=Path(_OUT or _FOLDER))
    parser.add_argument("--prepared", type=Path, default=ROOT / "build" / "gpu_prepared")
    options = parser.parse_args(given)
    if unknown := [name for name in options.cases if not any(name in module.CASES for module in _WITH_CASES)]:
        parser.error(f"no step has a case called {unknown[0]}")
    limit = options.limit or _NO_LIMIT_S
    run = Run(
        options.out.resolve(), options.prepared.resolve(), options.profile, options.pretend, options.jobs,
        time.time() + limit, limit / LIMIT_S, tuple(options.cases),
        scratch=_FOLDER / "work" if _OUT else None,
    )  # fmt: skip
    run.out.mkdir(parents=True, exist_ok=True)
    run.work.mkdir(parents=True, exist_ok=True)
    try:
        return _run(run, options.steps)
    except BaseException:  # A signal among them.
        end_all()
        raise
    finally:
        _pack(run)
        text = summary(run.out / "results.jsonl")
        (run.out / "summary.md").write_text(text)
        print(text)


def _run(run: Run, steps: Sequence[str]) -> int:
    compileall.compile_dir(ROOT / "src", quiet=2, workers=0)  # Once, not in each process.
    known = smoke.identify(run)
    if known is None:
        return _NO_DEVICE
    for group in GROUPS:
        chosen = [name for name in group if name in steps]
        threads = [threading.Thread(target=_step, args=(known, name, group[name])) for name in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if "smoke" in chosen and not smoke.is_passed(known):
            return _NO_SMOKE
    return 0 if is_all_right(run.out / "results.jsonl") else 1


def _step(run: Run, name: str, limit_s: float) -> None:
    """Run a step. An error is recorded and does not stop other steps."""
    begun = time.monotonic()
    if run.left_s() <= 0:
        run.record(name, "step", error="did not run: no time was left")
        return
    print(f"== {name}", flush=True)
    try:
        function: Callable[[Run], Any] = import_module(f"benchmarks.gpu_proof.{name}").step
        function(run.within(limit_s))
    except Exception as error:
        run.record(name, "step", error=repr(error)[:600], traceback=traceback.format_exc().splitlines()[-14:])
    run.record("time", name, seconds=round(time.monotonic() - begun, 1))


def _pack(run: Run) -> None:
    """Pack folders of the work into archives, because a device machine returns only few files."""
    for name in ("lines", "memory", "logs"):
        if (run.work / name).is_dir():
            with tarfile.open(run.out / f"{name}.tar.gz", "w:gz") as archive:
                archive.add(run.work / name, name)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
