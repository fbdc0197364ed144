"""The round trip of every architecture, into one folder; what is there already is not done again.

`python -m tests.round_trip --work FOLDER [--only llama,timm:resnet18] [--steps write,open,page]`
`python -m tests.round_trip --work FOLDER --only llama --steps write,open,page-update` keeps the other rows
`python -m tests.round_trip --work FOLDER [--only llama] --steps sizes,sizes-page`
`python -m tests.round_trip --work FOLDER --only llama --steps sizes,sizes-update` keeps the other rows
`python -m tests.round_trip --work FOLDER [--only llama] --steps ranks,ranks-page`, of types with a plan
`python -m tests.round_trip --work FOLDER [--only llama] --steps onnx,onnx-page`, in ONNX Runtime;
the page keeps its other rows
`python -m tests.round_trip --work FOLDER [--only llama] --steps tokens,onnx-page`, of generated tokens
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

STEPS = ("write", "open", "page")
PAGES = ("page", "page-update", "sizes-page", "sizes-update", "ranks-page", "onnx-page")
MOST_BYTES = 12 << 30
LIMIT_S = 900
AT_ONCE = 25


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path, default=Path("/tmp/round-trip"))
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--timm-versions", default="", help="what the timm cases were written with")
    parser.add_argument("--worker", action="store_true", help="of a step, in this process")
    options = parser.parse_args()
    steps = options.steps.split(",")
    every = _types_with_plan if "ranks" in steps else _families if "tokens" in steps else _all_names
    names = options.only.split(",") if options.only else every()
    if options.worker:
        (step,) = steps
        _WORKERS[step](options.work, names)
        return
    options.work.mkdir(parents=True, exist_ok=True)
    for step in steps:
        if step not in PAGES:
            _in_processes(step, options.work, names)
    if "page" in steps:
        _write_page(options.work, options.timm_versions)
    if "page-update" in steps:
        _update_page(options.work)
    if "sizes-page" in steps:
        _write_sizes_page(options.work)
    if "sizes-update" in steps:
        _write_sizes_page(options.work, is_update=True)
    if "onnx-page" in steps:
        from .onnx_page import PAGE, render, rows_with

        old = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(render(rows_with(options.work), old, _versions()), encoding="utf-8")
    if "ranks-page" in steps:
        from .ranks_page import PAGE, read_rows, render

        PAGE.write_text(render(read_rows(options.work), _versions()), encoding="utf-8")


def _write_page(work: Path, timm_versions: str) -> None:
    from .page import PAGE, render, rows_in

    of = {"transformers": _versions(), "timm": f"{timm_versions}, no GPU"}
    PAGE.write_text(render(rows_in(work), of), encoding="utf-8")


def _update_page(work: Path) -> None:
    from .page import PAGE, published, published_versions, render, rows_in

    rows = {**published(), **{row.name: row for row in rows_in(work)}}
    of = {**published_versions(), "transformers": _versions()}
    PAGE.write_text(render([rows[name] for name in sorted(rows)], of), encoding="utf-8")


def _write_sizes_page(work: Path, *, is_update: bool = False) -> None:
    from .sizes_page import PAGE, read_sizes, render, updated

    rows = read_sizes(work)
    PAGE.write_text(render(updated(rows) if is_update else rows, _versions()), encoding="utf-8")


def _versions() -> str:
    import torch
    import transformers

    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{versions}, Python {platform.python_version()}, no GPU"


def _all_names() -> list[str]:
    from tests.architectures import ARCHITECTURES

    return [str(architecture) for architecture in ARCHITECTURES]


def _types_with_plan() -> list[str]:
    from .ranks import planned_types

    return list(planned_types())


def _families() -> list[str]:
    from tests.generation.families import NAMED

    return list(NAMED)


def _in_processes(step: str, work: Path, names: Sequence[str]) -> None:
    """Runs a step for all names, in one process after the other: one that dies takes no other with it."""
    done = RESULTS[step]
    left = [name for name in names if not (work / name / done).exists()]
    while left:
        some = left[:AT_ONCE]
        command = [sys.executable, "-m", __package__, "--worker", "--work", str(work), "--steps", step]
        status = subprocess.run([*command, "--only", ",".join(some)], check=False).returncode
        missing = [name for name in some if not (work / name / done).exists()]
        if missing and status:
            _write(work / missing[0] / done, {"error": f"the process ended with {status}"})
        elif missing:
            raise AssertionError(f"nothing came of {missing}")
        left = [name for name in left if not (work / name / done).exists()]
        print(f"{step}: {len(left)} left", file=sys.stderr, flush=True)


RESULTS = {
    "write": "case.json",
    "open": "outcome.json",
    "sizes": "sizes.json",
    "ranks": "ranks.json",
    "onnx": "onnx.json",
    "tokens": "tokens.json",
}


def _write_cases(work: Path, names: Sequence[str]) -> None:
    import torch

    from .reference import write_case

    torch.set_num_threads(1)
    for name in names:
        folder = work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with _recorded(folder / RESULTS["write"]):
            write_case(spec_of(name, folder), folder)


def spec_of(name: str, folder: Path) -> str:
    """The source of an architecture: a model of timm, or a small config of transformers in the folder."""
    if name.startswith("timm:"):
        return name
    import transformers

    from tests.architectures import ARCHITECTURES

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return next(one for one in ARCHITECTURES if str(one) == name).source(folder)


def _open_cases(work: Path, names: Sequence[str]) -> None:
    from . import clean_process

    clean_process.main([str(work / name) for name in names])


def _call_at_other_sizes(work: Path, names: Sequence[str]) -> None:
    import torch

    from .guarded_sizes import calls_at_other_sizes

    torch.set_num_threads(1)
    for name in names:
        with tempfile.TemporaryDirectory() as folder, _recorded(work / name / RESULTS["sizes"]):
            calls = calls_at_other_sizes(spec_of(name, Path(folder)), Path(folder))
            found = None if calls is None else [asdict(call) for call in calls]
            _write(work / name / RESULTS["sizes"], found)


def _run_ranks(work: Path, names: Sequence[str]) -> None:
    import torch
    import transformers

    from .ranks import limited_memory, outcomes_of

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in names:
        path = work / name / RESULTS["ranks"]
        with tempfile.TemporaryDirectory() as folder, _recorded(path), limited_memory(MOST_BYTES):
            _write(path, {degree: asdict(found) for degree, found in outcomes_of(name, Path(folder)).items()})


def _run_onnx_files(work: Path, names: Sequence[str]) -> None:
    import torch

    from .onnx_files import outcome_of, read_translations_once

    torch.set_num_threads(1)
    read_translations_once()
    for name in names:
        path = work / name / RESULTS["onnx"]
        with tempfile.TemporaryDirectory() as folder, _recorded(path):
            _write(path, outcome_of(spec_of(name, Path(folder)), Path(folder)))


def _generate_with_onnx(work: Path, names: Sequence[str]) -> None:
    import torch

    from tests.generation.families import NAMED
    from tests.generation.onnx_tokens import onnx_agreement

    from .onnx_files import read_translations_once

    torch.set_num_threads(1)
    read_translations_once()
    for name in names:
        path = work / name / RESULTS["tokens"]
        with tempfile.TemporaryDirectory() as folder, _recorded(path):
            found = onnx_agreement(NAMED[name], Path(folder))
            _write(path, {"is_equal": found.is_equal, "variety": found.variety})


_WORKERS = {
    "write": _write_cases,
    "open": _open_cases,
    "sizes": _call_at_other_sizes,
    "ranks": _run_ranks,
    "onnx": _run_onnx_files,
    "tokens": _generate_with_onnx,
}


class _CaseTimeoutError(BaseException):
    """No Exception: a check would take it for a fault of the model, and go on."""


@contextlib.contextmanager
def _recorded(path: Path) -> Iterator[None]:
    """Writes what is raised, or that it took too long, to the file."""

    def too_long(*_: object) -> None:
        raise _CaseTimeoutError(f"more than {LIMIT_S} s of processor time")

    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    except (Exception, _CaseTimeoutError) as error:
        first = (str(error).splitlines() or [""])[0]
        _write(path, {"error": f"{type(error).__name__}: {first}", "trace": traceback.format_exc()})
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


if __name__ == "__main__":
    main()
