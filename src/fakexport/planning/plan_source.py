"""A model that is planned: where it is from, and what it is built for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fakexport.capture import parse_assumed
from fakexport.devices import Topology
from fakexport.parallel import Degrees, parallel_source
from fakexport.report import Progress
from fakexport.sources import Source, Workload, resolve


@dataclass(frozen=True)
class PlanSource:
    """A model, and what it is built for.

    Args:
        subject: The model, as `resolve` takes it.
        topology: The devices.
        device_map: Where its modules are; None: where the source puts them.
        dtype: The dtype that it is cast to; None: that of the source.
        folder: What paths in the subject are relative to, even after the model has left it.
        announce: Called before each export or run.
        parallel: Degrees of parallelism: planned is rank 0, of which no other rank has more; None: all of it.
        assume: Answers of what data decide, as `check` takes them.
    """

    subject: str | nn.Module | Callable[[], Any]
    topology: Topology
    device_map: str | Mapping[str, str] | None
    dtype: torch.dtype | None
    folder: Path
    announce: Callable[[Progress], None]
    parallel: Degrees | None = None
    assume: tuple[str, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the plan takes for granted, one sentence each."""
        assumed = tuple(each.sentence for each in parse_assumed(self.assume))
        if self.parallel is None:
            return assumed
        return (f"planned is rank 0 of {self.parallel.ranks}; no other rank needs more", *assumed)

    @property
    def placement(self) -> str | None:
        """The device map as the user wrote it."""
        return None if self.device_map is None else str(self.device_map)

    def resolved(self, workload: Workload) -> Source:
        """Return the source for a workload: its example inputs have the sizes of the workload."""
        os.chdir(self.folder)
        return parallel_source(resolve(self.subject, workload=workload), self.parallel)

    def note_trace(self) -> None:
        """Announce that the model is exported or run on fakes."""
        self.announce(Progress(1, 1, self.topology.canonical, "trace"))
