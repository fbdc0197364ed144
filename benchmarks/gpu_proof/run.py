"""Settings that all steps of a run share: folders for results, the device, and the time limit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 530.0
"""Time limit of a run in seconds. The limits of steps and parts are scaled if a run has a different limit."""


@dataclass(frozen=True)
class Run:
    """One run of the proof. It is passed to other processes as JSON.

    Args:
        out: Folder for the results.
        prepared: Folder for prepared files that need no GPU. It contains `Run.made`.
        profile: The device profile of the GPU, which is emulated when the GPU is hidden.
        is_pretend: Whether to run without a GPU. Each step then does everything that needs no GPU.
        jobs: Number of processes that may work at the same time.
        deadline: Time at which the run must have ended, on the clock of `time.time()`.
        scale: Factor for the limits of steps and parts.
        only: Names of cases. If not empty, all other cases are skipped.
        python: Python interpreter of the processes.
        scratch: Folder for files that processes pass to each other. Default: a folder in `out`.
    """

    out: Path
    prepared: Path
    profile: str
    is_pretend: bool
    jobs: int
    deadline: float
    scale: float = 1.0
    only: tuple[str, ...] = ()
    python: str = ""
    scratch: Path | None = None

    @staticmethod
    def in_folder(folder: Path, *, profile: str, is_pretend: bool) -> Run:
        """Return a run without a time limit that writes only to one folder."""
        run = Run(folder, folder / "prepared", profile, is_pretend, jobs=2, deadline=math.inf)
        run.work.mkdir(parents=True, exist_ok=True)
        return run

    @property
    def device(self) -> str:
        """The device of real tensors."""
        return "cpu" if self.is_pretend else "cuda:0"

    @property
    def work(self) -> Path:
        """Folder for files that processes pass to each other."""
        return self.scratch or self.out / "work"

    @property
    def made(self) -> Path:
        """Folder for the prepared files of this profile, these libraries and these sources of fakexport."""
        libraries = "-".join(f"{name}-{version(name)}" for name in ("torch", "transformers"))
        return self.prepared / f"{self.profile}-{libraries}-{_source_hash()}"

    def record(self, step: str, case: str, **facts: Any) -> None:
        """Append one result. Processes share the file, so each line is written with one call."""
        line = json.dumps({"step": step, "case": case, **facts}, default=str)
        file = os.open(self.out / "results.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)
        print(line[:300], flush=True)

    def left_s(self) -> float:
        return self.deadline - time.time()

    def within(self, seconds: float) -> Run:
        """Return this run with an earlier deadline, for one step."""
        return dataclasses.replace(self, deadline=min(self.deadline, time.time() + seconds * self.scale))

    def chosen(self, cases: Iterable[str]) -> list[str]:
        return [case for case in cases if not self.only or case in self.only]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), default=str)

    @staticmethod
    def of_json(text: str) -> Run:
        found = json.loads(text)
        paths = {name: Path(found[name]) for name in ("out", "prepared", "scratch") if found.get(name)}
        return Run(**{**found, **paths, "only": tuple(found["only"])})


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
