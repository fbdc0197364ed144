"""The request that every process of a benchmark reads."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_FILE = "request.json"


@dataclass(frozen=True)
class Request:
    """One model and how it is measured.

    Args:
        source: As for `check`.
        dtype: Default floating-point dtype during construction; None for the source's own.
        inputs: As for `check`.
        dynamic: As for `check`.
        libraries: Operator libraries to load first: files, or Python modules.
        threads: Number of torch threads; None for torch's own.
        warmup, repeat: Untimed and timed calls.
        folder: What paths in them are relative to.
    """

    source: str
    dtype: str | None = None
    inputs: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    threads: int | None = None
    warmup: int = 3
    repeat: int = 20
    folder: str = field(default_factory=os.getcwd)

    def write(self, folder: Path) -> None:
        """Write the request to the folder of the benchmark."""
        (folder / _FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Request:
        """Return the request of a folder."""
        found: dict[str, Any] = json.loads((folder / _FILE).read_text())
        fields: dict[str, Any] = {
            key: tuple(item) if isinstance(item, list) else item for key, item in found.items()
        }
        return cls(**fields)
