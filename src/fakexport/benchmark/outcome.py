"""Findings of a benchmark process, in a file that is always up to date: the process may die."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps, loads  # A model may replace them in `json`.
from pathlib import Path
from typing import Any

from fakexport.deploy import CompileFailure
from fakexport.error import FakexportError
from fakexport.report import BenchFailure, BenchStep, missing_package

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class StepFailed(Exception):
    """A step failed, and the failure is in the outcome."""


class Outcome:
    """Steps, the failures in them, and facts, in a file; an existing one is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: dict[str, Any] = {"step": None, "failures": [], "facts": {}, "is_complete": False}
        if path.exists():
            self._content = loads(path.read_text())

    @property
    def step(self) -> BenchStep | None:
        """The current step; None before the first and after the last."""
        found: BenchStep | None = self._content["step"]
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """What was found."""
        return dict(self._content["facts"])

    @property
    def failures(self) -> tuple[BenchFailure, ...]:
        """What failed, in order."""
        return tuple(BenchFailure(**failure) for failure in self._content["failures"])

    @property
    def is_complete(self) -> bool:
        """Whether the process came to its end, in the same way as a model that ends it may do."""
        return bool(self._content["is_complete"])

    def complete(self) -> None:
        """Take note that the process has done all of its work."""
        self._content["is_complete"] = True
        self._write()

    def note(self, **facts: Any) -> None:
        """Keep facts, of the kinds that JSON has."""
        self._content["facts"].update(facts)
        self._write()

    @contextmanager
    def during(self, step: BenchStep) -> Iterator[None]:
        """Run a step; any error in it becomes a failure.

        Raises:
            StepFailed: there was an error.
        """
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
    """Return one line about an error: its first informative line."""
    if isinstance(error, CompileFailure):
        first, *others = error.diagnostics
        place = next((f" at {each.span.path}:{each.span.line}" for each in first.labels), "")
        note = f": {_first_line(first.notes[0])}" if first.notes else ""
        more = f"; and {len(others)} more" if others else ""
        return f"{first.code}: {first.message}{place}{note}{more}"
    if (missing := missing_package(error)) is not None:
        return missing
    text = _first_line(str(error))
    if isinstance(error, FakexportError) and text:
        return text
    name = traceback.format_exception_only(error)[-1].partition(":")[0].rpartition(".")[2].strip()
    return f"{name}: {text}" if text else name


def _first_line(text: str) -> str:
    """Return the first line that is not empty, without addresses, which change each time."""
    first = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    return _ADDRESS.sub("", first)
