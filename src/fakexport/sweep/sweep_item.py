"""One check of a sweep."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SweepItem:
    """A model, and how it is checked: the options of `fakexport check`, as they are written there.

    Args:
        source: The model.
        target: One topology.
        dtype, device_map, component: None for the default.
        dynamic: What `--dynamic` is given, in order; nothing for sizes that do not vary.
        workload: The call.
        assume, inputs, libraries: What `--assume`, `--input` and `--library` are given.
    """

    source: str
    target: str = "cpu"
    dtype: str | None = None
    dynamic: tuple[str, ...] = ()
    workload: str = "forward"
    device_map: str | None = None
    component: str | None = None
    assume: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """The command line after `fakexport`, without what only says how it is printed."""
        given = [
            ("--target", self.target),
            ("--device-map", self.device_map),
            ("--dtype", self.dtype),
            *(("--dynamic", each) for each in self.dynamic),
            ("--workload", self.workload if self.workload != "forward" else None),
            ("--component", self.component),
            *(("--assume", each) for each in self.assume),
            *(("--input", each) for each in self.inputs),
            *(("--library", each) for each in self.libraries),
        ]
        options = [text for name, value in given if value is not None for text in (name, value)]
        return ["check", self.source, *options]

    @property
    def command(self) -> str:
        """The command that does this check alone. It names the item in a run: no two have the same."""
        return shlex.join(["fakexport", *self.arguments])
