"""`fakexport.lock` in one command: read at its start, compared model by model, written at its end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fakexport._libraries import named_path
from fakexport.cli.project_file import ProjectFile
from fakexport.cli.streams import write_error_line, write_note

if TYPE_CHECKING:
    from fakexport.lock import Key, LockEntry
    from fakexport.report import Report

LOCK_NAME = "fakexport.lock"


@dataclass
class LockSession:
    """What a command does with the lock.

    Args:
        path: The file.
        is_updating: Write what is found, instead of comparing with it.
        is_whole: All models of the project are checked, so an entry of another model is stale.
        locked: The entries of the file.
        accept: The command that accepts what moved.
    """

    path: Path
    is_updating: bool
    is_whole: bool
    locked: Mapping[Key, LockEntry]
    accept: str
    _now: dict[Key, LockEntry] = field(default_factory=dict)

    def compared(self, report: Report, source: str, options: Mapping[str, str]) -> Report:
        """Take note of a report, and return it with what moved, unless that is accepted."""
        from fakexport.lock import entries_of, locked_report

        folder = self.path.parent
        seen = {name: _seen_from(folder, value) for name, value in options.items()}
        now = entries_of(report, source=_seen_from(folder, source), options=seen)
        self._now |= {entry.key: entry for entry in now}
        return report if self.is_updating else locked_report(report, now, self.locked, accept=self.accept)

    def entries(self) -> Iterable[tuple[Literal["same", "added", "changed"], LockEntry]]:
        """Return what became of each entry, in the order of the checks."""
        for key, entry in self._now.items():
            known = self.locked.get(key)
            yield "added" if known is None else "same" if known == entry else "changed", entry

    @property
    def is_written(self) -> bool:
        """Whether `end` writes the file: a command that checked nothing leaves it as it is."""
        return self.is_updating and bool(self._now)

    def end(self, *, refused: int = 0) -> bool:
        """Write the lock, or say what it has too much; return whether there is such an entry."""
        from fakexport.files import exclusive
        from fakexport.lock import read_lock, write_lock

        is_complete = self.is_whole and not refused
        rest = [key for key in self.locked if key not in self._now]
        if self.is_updating:
            if not self.is_written:
                return False
            with exclusive(self.path.parent):
                # Another process may have written it since it was read here.
                known = read_lock(self.path).entries if self.path.exists() and not is_complete else {}
                write_lock(self.path, {**known, **self._now}.values())
            return False
        self._note_versions()
        # An entry with other options was compared with a model that has none with its own.
        compared = {key[:2] for key in self._now if key not in self.locked}
        stale = [key for key in rest if is_complete and key[:2] not in compared]
        for source, target, _ in stale:
            write_error_line(
                f"error: {LOCK_NAME}: {source} for {target} is locked and not checked any more; remove it "
                "with `fakexport lock`"
            )
        return bool(stale)

    def _note_versions(self) -> None:
        """Say once that libraries are not those of the lock, where the programs are the same all the same."""
        moved = {
            (name, known.versions.get(name, "none"), entry.versions.get(name, "none"))
            for key, entry in self._now.items()
            if (known := self.locked.get(key)) is not None and _is_same_program(known, entry)
            for name in known.versions.keys() | entry.versions.keys()
        }
        if changes := [f"{name} {old} -> {new}" for name, old, new in sorted(moved) if old != new]:
            write_note(f"{LOCK_NAME} was written with other versions: {', '.join(changes)}")


def lock_session(
    project: ProjectFile | None, *, is_updating: bool, is_whole: bool, accept: str
) -> LockSession:
    """Return the session of a command, with the lock read.

    Raises:
        LockFileError: the lock is not there, or not readable, and its entries are needed.
    """
    from fakexport.lock import LockFileError, read_lock

    path = (Path.cwd() if project is None else project.path.parent) / LOCK_NAME
    locked: Mapping[Key, LockEntry] = {}
    try:
        if path.exists() or not is_updating:
            locked = read_lock(path).entries
    except LockFileError:
        if not (is_updating and is_whole):  # Which replaces all of it.
            raise
    return LockSession(path, is_updating, is_whole, locked, accept)


def _is_same_program(known: LockEntry, entry: LockEntry) -> bool:
    both = known.program, entry.program
    return None not in both and known.program.digest == entry.program.digest  # type: ignore[union-attr]


def _seen_from(folder: Path, written: str) -> str:
    """Return a source or a path that is relative to the working directory as one relative to a folder."""
    if folder == Path.cwd():
        return written
    prefix, path, rest = named_path(written, Path.cwd()) or ("", "", written)
    if not path or Path(path).is_absolute():
        return written
    return f"{prefix}{Path(os.path.relpath(path, folder)).as_posix()}{rest}"
