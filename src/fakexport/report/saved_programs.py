"""The exported programs of a target, as the bytes of an archive without weights, to pass to a process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fakexport.error import InvalidValue, raise_missing, type_and_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class SavedPrograms:
    """Programs by rank, loaded on first access.

    Args:
        ranks: The ranks whose programs are saved; `(0,)` if the model is not parallel.
        archive: The bytes of a `.pt2` file.
        fault: The error that `content` raises if the programs could not be saved; `archive` is then empty.
    """

    ranks: tuple[int, ...]
    archive: bytes
    fault: Exception | None = field(default=None, compare=False)

    @classmethod
    def of(cls, programs: Mapping[int, ExportedProgram], *, root: Path) -> SavedPrograms:
        """Save programs by rank; `root` is passed to `save`."""
        ranks = tuple(programs)
        try:
            if ranks == (0,):
                return cls(ranks, archive_of(programs[0], root=root))
            return cls(ranks, archive_of({f"rank{rank}": programs[rank] for rank in ranks}, root=root))
        except InvalidValue as error:
            return cls(ranks, b"", error)
        except ValueError as error:
            return cls(ranks, b"", InvalidValue(str(error)))
        except Exception as error:  # An internal error; the verdict is still valid.
            raise_missing(error)
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
            # A child process of this one wrote the file, so operators with side effects are safe to load.
            bundle = load_bundle(path, trust=True)
        return dict(zip(self.ranks, bundle.values(), strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ranks, self.archive, self.fault)


def archive_of(programs: ExportedProgram | Mapping[str, ExportedProgram], *, root: Path) -> bytes:
    """Return the archive that `save` writes for one program, or `save_bundle` for several."""
    from fakexport.archive import save, save_bundle

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "programs.pt2")
        if isinstance(programs, Mapping):
            save_bundle(programs, path, root=root)
        else:
            save(programs, path, root=root)
        return path.read_bytes()
