"""The results of a benchmark process, which may crash: they are written after each step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps, loads  # A model may patch the module `json`.
from pathlib import Path
from typing import Any

from fakexport.deploy import CompileFailure
from fakexport.error import FakexportError, type_and_line
from fakexport.report import BenchFailure, BenchStep, missing_package

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class StepFailed(Exception):
    """A step failed. The failure is recorded in the outcome."""


class Outcome:
    """The steps, failures and results of a process, in a file. An existing file is read first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: dict[str, Any] = {"step": None, "failures": [], "facts": {}, "is_complete": False}
        if path.exists():
            self._content = loads(path.read_text())

    @property
    def step(self) -> BenchStep | None:
        """The current step; None before the first step and between steps."""
        found: BenchStep | None = self._content["step"]
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """Recorded results by name."""
        return dict(self._content["facts"])

    @property
    def failures(self) -> tuple[BenchFailure, ...]:
        """Recorded failures, in order."""
        return tuple(BenchFailure(**failure) for failure in self._content["failures"])

    @property
    def is_complete(self) -> bool:
        """Whether the process finished its work. It is false if, for example, the model ended the process."""
        return bool(self._content["is_complete"])

    def complete(self) -> None:
        """Record that the process finished its work."""
        self._content["is_complete"] = True
        self._write()

    def note(self, **facts: Any) -> None:
        """Record results by name. Their values must be supported by JSON."""
        self._content["facts"].update(facts)
        self._write()

    @contextmanager
    def during(self, step: BenchStep) -> Iterator[None]:
        """Run a step and record any error in it as a failure, which raises `StepFailed`."""
        self._content["step"] = step
        self._write()
        try:
            yield
        except Exception as error:
            self._content["failures"].append({"step": step, "reason": reason(error)})
            raise StepFailed from error
        finally:
            self._content["step"] = None
            self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(dumps(self._content))
        new.replace(self._path)


def reason(error: BaseException) -> str:
    """Describe an error in one line: the first informative line of its message."""
    if isinstance(error, CompileFailure):
        first, *others = error.diagnostics
        place = next((f" at {each.span.path}:{each.span.line}" for each in first.labels), "")
        note = f": {_first_line(first.notes[0])}" if first.notes else ""
        more = f"; and {len(others)} more" if others else ""
        return f"{first.code}: {first.message}{place}{note}{more}"
    if (missing := missing_package(error)) is not None:
        return missing
    if isinstance(error, FakexportError) and str(error):
        return _first_line(str(error))
    return _first_line(type_and_line(error))


def _first_line(text: str) -> str:
    """Return the first nonempty line, without memory addresses, which differ between runs."""
    first = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    return _ADDRESS.sub("", first)
