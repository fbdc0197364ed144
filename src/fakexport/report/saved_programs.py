"""The exported programs of a target, as the bytes of a weight-less archive: a value for other processes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fakexport.error import InvalidValue, type_and_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class SavedPrograms:
    """Programs by rank, loaded when they are read.

    Args:
        ranks: The ranks whose programs it has; `(0,)` if the model is not parallel.
        archive: A `.pt2` file.
        fault: What `content` raises because they could not be saved; then `archive` is empty.
    """

    ranks: tuple[int, ...]
    archive: bytes
    fault: Exception | None = field(default=None, compare=False)

    @classmethod
    def of(cls, programs: Mapping[int, ExportedProgram], *, root: Path) -> SavedPrograms:
        """Return programs by rank as a value; `root` is that of `save`."""
        ranks = tuple(programs)
        try:
            if ranks == (0,):
                return cls(ranks, archive_of(programs[0], root=root))
            return cls(ranks, archive_of({f"rank{rank}": programs[rank] for rank in ranks}, root=root))
        except InvalidValue as error:
            return cls(ranks, b"", error)
        except ValueError as error:
            return cls(ranks, b"", InvalidValue(str(error)))
        except Exception as error:  # A fault of our own; the verdict is right.
            return cls(ranks, b"", RuntimeError(f"the program cannot be saved: {type_and_line(error)}"))

    @property
    def content(self) -> bytes:
        """The archive.

        Raises:
            Exception: the programs could not be saved.
        """
        if self.fault is not None:
            raise self.fault
        return self.archive

    @property
    def program(self) -> ExportedProgram:
        """The program of rank 0."""
        return self.programs[0]

    @cached_property
    def programs(self) -> Mapping[int, ExportedProgram]:
        """The programs by rank."""
        from fakexport.archive import load_bundle

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "programs.pt2")
            path.write_bytes(self.content)
            # Written by a process of this one, so operators that do more than compute are fine.
            bundle = load_bundle(path, trust=True)
        return dict(zip(self.ranks, bundle.values(), strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ranks, self.archive, self.fault)


def archive_of(programs: ExportedProgram | Mapping[str, ExportedProgram], *, root: Path) -> bytes:
    """Return the archive that `save` writes of a program, or `save_bundle` of several."""
    from fakexport.archive import save, save_bundle

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "programs.pt2")
        if isinstance(programs, Mapping):
            save_bundle(programs, path, root=root)
        else:
            save(programs, path, root=root)
        return path.read_bytes()
