"""The steps of a check, and how they are reported and timed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from fakexport.report import Stage, Step

STAGES: Mapping[Step, Stage] = {
    "build": "build",
    "trace": "capture",
    "explore": "capture",
    "analyse": "analyse",
}
"""Step of a check -> the stage that it belongs to."""


class Announce(Protocol):
    """Reports the current step to the caller of `check`."""

    def step(self, step: Step, finding: str = "", blocks: int | None = None) -> None:
        """Start a step. `explore` gets the error as `finding`. `blocks` is the number of blocks to trace."""

    def done(self, blocks: int, module: str) -> None:
        """Report the number of traced blocks, and the path of the module that is being traced."""


class Silent:
    """Reports nothing, because the process has no pipe of its own to the caller of `check`."""

    def step(self, step: Step, finding: str = "", blocks: int | None = None) -> None: ...

    def done(self, blocks: int, module: str) -> None: ...


@dataclass
class Clock:
    announce: Announce
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
