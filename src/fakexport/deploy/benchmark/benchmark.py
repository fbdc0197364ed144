"""Benchmark one model in several deployment formats."""

from __future__ import annotations

import os
import platform
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakexport._version import __version__
from fakexport.deploy import DeployError
from fakexport.error import InvalidValue
from fakexport.files.processes import Limits, processor_text, run_limited
from fakexport.models import installed_version, parse_dynamic
from fakexport.models.sources import parse_input_spec
from fakexport.report import BenchFailure, BenchMeasures, BenchReport, BenchRow, Spread

from .model import Request
from .modes import MODES
from .outcome import Outcome
from .reference import Facts

# Packages whose version affects the results of a mode.
_PACKAGES_OF = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "executorch": ("executorch",)}


def bench(
    source: str,
    *,
    modes: Sequence[str] = tuple(MODES),
    dtype: str | None = None,
    inputs: Sequence[str] = (),
    dynamic_shapes: Sequence[str] = (),
    libraries: Sequence[str] = (),
    threads: int | None = None,
    warmup: int = 3,
    repeat: int = 20,
    timeout_s: float = 600.0,
    on_progress: Callable[[str], None] | None = None,
) -> BenchReport:
    """Measure a model in several deployment formats on this machine's CPU, and compare each with eager mode.

    The weights are created by the model's constructor with seed 0, and the model is in eval mode. Each format
    is written in one process, and opened and run in a second process. The second process cannot import the
    packages of the model's classes, unless the format includes code. A format that fails, crashes or hangs
    has a row with the reason.

    Args:
        source: As for `check`, but only as a string, because each process loads the source itself.
        modes: Names in `MODES`.
        dtype, inputs, dynamic_shapes: As for `check`.
        libraries: Operator libraries to load in each process: files, or Python modules.
        threads: Number of torch threads. Default: torch's default.
        warmup, repeat: Number of untimed calls, and of timed calls (at least one).
        timeout_s: Wall-time limit for each process.
        on_progress: Called with a line of text when a process starts.

    Returns:
        A row for each mode, in the requested order.

    Raises:
        ValueError: A mode is unknown or repeated, or an input or dimension cannot be parsed.
        DeployError: The source, its inputs or dimensions do not fit, or the eager model does not run. The
            message is a single line.

    Example:
        >>> bench("mlp.py:factory", modes=["eager", "export"]).rows[1].is_equal  # doctest: +SKIP
        True
    """
    _check_modes(modes)
    parse_dynamic(dynamic_shapes)
    for text in inputs:
        parse_input_spec(text)
    request = Request(
        source=source,
        dtype=dtype,
        inputs=tuple(inputs),
        dynamic=tuple(dynamic_shapes),
        libraries=tuple(libraries),
        threads=threads,
        warmup=warmup,
        repeat=repeat,
    )
    announce = on_progress or (lambda line: None)
    with tempfile.TemporaryDirectory(prefix="fakexport-bench-") as name:
        folder = Path(name)
        request.write(folder)
        announce("eager: reference outputs")
        reference = _reference(folder, timeout_s)
        facts = Facts.read(folder)
        rows = []
        for number, mode in enumerate(modes, start=1):

            def step(what: str, mode: str = mode, number: int = number) -> None:
                announce(f"[{number}/{len(modes)}] {mode}: {what}")

            rows.append(_row(mode, folder, timeout_s, step))
    return BenchReport(
        source=source,
        inputs=facts.inputs,
        other_inputs=facts.other_inputs,
        assumptions=facts.assumptions,
        rows=tuple(rows),
        versions=_versions(modes, facts.packages),
        processor=processor_text(),
        threads=reference.facts["threads"],
    )


def _check_modes(modes: Sequence[str]) -> None:
    for mode in modes:
        if mode not in MODES:
            raise InvalidValue(f"unknown mode {mode!r}; the modes are {', '.join(MODES)}")
    if not modes or len(set(modes)) < len(modes):
        raise InvalidValue("name at least one mode, and each mode only once")


def _reference(folder: Path, timeout_s: float) -> Outcome:
    outcome, died = run_part(folder, "reference", timeout_s=timeout_s)
    failures = [*outcome.failures, *([died] if died else ())]
    if failures:
        raise DeployError(f"eager: {_without_folder(failures[0], folder).reason}")
    return outcome


def _row(mode: str, folder: Path, timeout_s: float, step: Callable[[str], None]) -> BenchRow:
    row = BenchRow(mode, is_captured=True)
    if MODES[mode].make is not None:
        step("capture and write")
        row = _with(row, folder, *run_part(folder, "make", mode, timeout_s=timeout_s))
        if row.failures:
            return replace(row, is_captured=False, measures=BenchMeasures())
    step("load, run and time")
    return _with(row, folder, *run_part(folder, "use", mode, timeout_s=timeout_s))


def _with(row: BenchRow, folder: Path, outcome: Outcome, died: BenchFailure | None) -> BenchRow:
    """Add the results of a process to a row."""
    found: dict[str, Any] = outcome.facts
    verdicts = {
        name: found.pop(name) for name in ("is_equal", "keeps_dynamic", "needs_code") if name in found
    }
    if died is not None and died.step == "resize":
        verdicts["keeps_dynamic"] = False
    for name in ("latency_s", "ratio"):
        if name in found:
            found[name] = Spread(**found[name])
    failures = [
        _without_folder(failure, folder) for failure in (*outcome.failures, *([died] if died else ()))
    ]
    measures = replace(row.measures, **found)
    return replace(row, **verdicts, failures=(*row.failures, *failures), measures=measures)


def _without_folder(failure: BenchFailure, folder: Path) -> BenchFailure:
    """Remove the path of the temporary folder from a failure's reason."""
    return replace(failure, reason=failure.reason.replace(f"{folder}/", ""))


def _versions(modes: Sequence[str], packages: Sequence[str]) -> dict[str, str]:
    wanted = ["torch", *packages, *(name for mode in modes for name in _PACKAGES_OF.get(mode, ()))]
    found = {"fakexport": __version__}
    for name in dict.fromkeys(wanted):
        if (version := installed_version(name)) is not None:  # None also for a user's file.
            found[name] = version
    return {**found, "python": platform.python_version()}


_MODULE = "fakexport.deploy.benchmark.worker"


def run_part(
    folder: Path, part: str, mode: str = "", *, timeout_s: float
) -> tuple[Outcome, BenchFailure | None]:
    """Run one part of the benchmark in a separate process. It ends when this process ends."""
    log = folder / f"{part}-{mode}.log"
    # Each process gets an empty cache, because earlier compilations would make this one faster.
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / f"{part}-{mode}.cache")}
    with log.open("wb") as output:
        arguments, limits = [str(folder), part, mode], Limits(timeout_s)
        ended = run_limited(_MODULE, arguments, limits, stdout=output, stderr=output, environment=environment)
    code = ended.code  # None after a timeout, and the negative signal number if the process was killed.
    outcome = Outcome(folder / f"{part}-{mode}.json")
    if code == 0 and outcome.is_complete:
        return outcome, None
    step = outcome.step or ("make" if part == "make" else "load")
    return outcome, BenchFailure(step, _why(code, timeout_s, log))


def _why(code: int | None, timeout_s: float, log: Path) -> str:
    if code is None:
        return f"timed out after {timeout_s:g} s"
    if code < 0:
        name = signal.Signals(-code).name
        return f"the process was killed by {name}" + (", possibly out of memory" if name == "SIGKILL" else "")
    lines = log.read_text(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"the process exited with code {code}: {last}"
