"""The exported programs of a target, as the bytes of an archive without weights, to pass to a process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fakexport.error import InvalidValue, raise_missing, type_and_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from fakexport.archive import Bundle


@dataclass(frozen=True)
class SavedPrograms:
    """Programs of a target, loaded on first access.

    Args:
        ranks: The ranks whose programs are saved; `(0,)` if the model is not parallel, and `()` if the
            archive contains pipeline stages.
        archive: The bytes of a `.pt2` file.
        fault: The error that `content` raises if the programs could not be saved; `archive` is then empty.
            It is also empty if the programs were only saved to find such an error.
    """

    ranks: tuple[int, ...]
    archive: bytes
    fault: Exception | None = field(default=None, compare=False)

    @classmethod
    def of(cls, program: ExportedProgram, *, root: Path, is_kept: bool = True) -> SavedPrograms:
        """Save a program; `root` is passed to `save`. Keep the archive only if `is_kept`."""
        return cls._saved((0,), partial(archive_of if is_kept else _tried, program, root=root))

    @classmethod
    def of_ranks(cls, saved: Mapping[int, SavedPrograms], *, root: Path) -> SavedPrograms:
        """Put the saved programs or stages of ranks together; `root` is passed to `save`."""
        first, *more = every = list(saved.values())
        if not more:
            return first
        ranks = tuple(saved) if first.ranks else ()
        fault = next((each.fault for each in every if each.fault is not None), None)
        if fault is not None or not first.archive:
            return cls(ranks, b"", fault)
        named = {f"rank{rank}": each for rank, each in saved.items()}
        return cls._saved(ranks, lambda: merged_archive(named) or loaded_archive(named, root=root))

    @classmethod
    def of_stages(cls, stages: Mapping[str, ExportedProgram], *, root: Path) -> SavedPrograms:
        """Save pipeline stages by method; `root` is passed to `save`."""
        return cls._saved((), partial(archive_of, stages, root=root))

    @classmethod
    def _saved(cls, ranks: tuple[int, ...], save: Callable[[], bytes]) -> SavedPrograms:
        try:
            return cls(ranks, save())
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

    @property
    def programs(self) -> Mapping[int, ExportedProgram]:
        """The programs by rank."""
        return dict(zip(self.ranks, self.bundle.values(), strict=True))

    @cached_property
    def bundle(self) -> Bundle:
        """The programs by method; `model` if the archive contains one program."""
        from fakexport.archive import load_bundle

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "programs.pt2")
            path.write_bytes(self.content)
            # A child process of this one wrote the file, so operators with side effects are safe to load.
            return load_bundle(path, trust=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ranks, self.archive, self.fault)


def merged_archive(saved: Mapping[str, SavedPrograms]) -> bytes | None:
    """Return a bundle of all these programs, or None if they must be loaded to write it.

    The method of a rank or a stage is preceded by the name.
    """
    from fakexport.archive import merge, method_manifests

    programs: dict[str, tuple[Path, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, each in saved.items():
            path = Path(folder, f"{len(programs)}.pt2")
            path.write_bytes(each.content)
            for method in method_manifests(path):
                programs[_method(name, method)] = path, method
        path = Path(folder, "programs.pt2")
        return None if merge(programs, path, trust=True) is None else path.read_bytes()


def loaded_archive(saved: Mapping[str, SavedPrograms], *, root: Path) -> bytes:
    """Load all these programs, and return a bundle of them; see `merged_archive`."""
    every = ((name, each.bundle.items()) for name, each in saved.items())
    return archive_of({_method(name, own): each for name, found in every for own, each in found}, root=root)


def _method(name: str, method: str) -> str:
    return name if method == "model" else f"{name}_{method}"


def _tried(programs: ExportedProgram | Mapping[str, ExportedProgram], *, root: Path) -> bytes:
    from fakexport.archive import try_to_save

    try_to_save(programs, root=root)
    return b""


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
