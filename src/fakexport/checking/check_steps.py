"""The steps of a check, and how they are reported and timed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from fakexport.files.processes import Send
from fakexport.report import Stage, Step

STAGES: Mapping[Step, Stage] = {
    "build": "build",
    "trace": "capture",
    "explore": "capture",
    "analyse": "analyse",
}
"""Step of a check -> the stage that it belongs to."""


class Announcer:
    """Reports the steps of a check to its caller.

    Args:
        send: Receives the messages. Default: they are dropped.
    """

    def __init__(self, send: Send = lambda _: None) -> None:
        self._send = send

    def step(self, step: Step, finding: str = "", blocks: int | None = None) -> None:
        """Start a step. `explore` gets the error as `finding`. `blocks` is the number of blocks to trace."""
        self._send(("step", (step, finding, blocks)))

    def done(self, blocks: int, module: str) -> None:
        """Report the number of traced blocks, and the path of the module that is being traced."""
        self._send(("done", (blocks, module)))


@dataclass
class Clock:
    """Announces steps, and measures the wall time of each stage."""

    announce: Announcer
    stage: Stage = "build"
    seconds: dict[Stage, float] = field(default_factory=dict)

    @contextmanager
    def running(self, step: Step, blocks: int | None = None) -> Iterator[None]:
        stage = self.stage = STAGES[step]
        self.announce.step(step, blocks=blocks)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    @contextmanager
    def all_counted(self) -> Iterator[None]:
        """Count the time of the block that no step in it takes as part of the capture."""
        start, before = time.perf_counter(), sum(self.seconds.values())
        yield
        waited = time.perf_counter() - start - (sum(self.seconds.values()) - before)
        self.seconds["capture"] = self.seconds.get("capture", 0.0) + waited
