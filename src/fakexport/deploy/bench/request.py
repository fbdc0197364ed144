"""What every process of a benchmark is told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Request"]

_FILE = "request.json"


@dataclass(frozen=True)
class Request:
    """One model and how it is measured.

    Args:
        source: As for `check`.
        dtype: Default floating dtype of the construction; None for the source's own.
        inputs: As for `check`.
        dynamic: As for `check`.
        libraries: Operator libraries to load first: files, or modules of Python.
        threads: Of torch; None for as many as it takes by itself.
        warmup, repeat: Calls that are not timed, and calls that are.
    """

    source: str
    dtype: str | None = None
    inputs: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    threads: int | None = None
    warmup: int = 3
    repeat: int = 20

    def write(self, folder: Path) -> None:
        """Leaves the request in the folder of the benchmark."""
        (folder / _FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Request:
        """The request of a folder."""
        found: dict[str, Any] = json.loads((folder / _FILE).read_text())
        fields: dict[str, Any] = {
            key: tuple(item) if isinstance(item, list) else item for key, item in found.items()
        }
        return cls(**fields)
