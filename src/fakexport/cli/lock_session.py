"""Use `fakexport.lock` in a command: read it first, compare it with each report, and write it at the end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fakexport.cli.project_file import ProjectFile
from fakexport.cli.streams import write_error_line, write_note
from fakexport.models import named_path

if TYPE_CHECKING:
    from fakexport.checking.lock import Key, LockEntry
    from fakexport.report import Report

LOCK_NAME = "fakexport.lock"


@dataclass
class LockSession:
    """The lock file during one command.

    Args:
        is_updating: Whether to record the exported programs instead of comparing them with the lock file.
        is_whole: Whether all models of the project are checked. Entries of any other model are then stale.
        locked: The entries of the file at the start of the command.
        accept: The command that accepts the differences, for messages.
    """

    path: Path
    is_updating: bool
    is_whole: bool
    locked: Mapping[Key, LockEntry]
    accept: str
    _now: dict[Key, LockEntry] = field(default_factory=dict)

    def compared(self, report: Report, source: str, options: Mapping[str, str]) -> Report:
        """Record the programs of a report, and return the report.

        Unless the lock file is being updated, differences from the lock file are added to the report.
        """
        from fakexport.checking.lock import entries_of, locked_report

        folder = self.path.parent
        seen = {name: _seen_from(folder, value) for name, value in options.items()}
        now = entries_of(report, source=_seen_from(folder, source), options=seen)
        self._now |= {entry.key: entry for entry in now}
        return report if self.is_updating else locked_report(report, now, self.locked, accept=self.accept)

    def end(self, *, refused: int = 0) -> bool:
        """Write the lock file, or print its stale entries and return whether there are any."""
        from fakexport.checking.lock import read_lock, write_lock
        from fakexport.files import exclusive

        is_complete = self.is_whole and not refused
        rest = [key for key in self.locked if key not in self._now]
        if self.is_updating:
            if not self._now:
                return False
            with exclusive(self.path.parent):
                # Another process may have written the file after this one read it.
                known = read_lock(self.path) if self.path.exists() and not is_complete else {}
                write_lock(self.path, {**known, **self._now}.values())
            self._list_changes()
            return False
        self._note_versions()
        # A model without an entry for its options was compared with its entry for different options.
        compared = {key[:2] for key in self._now if key not in self.locked}
        stale = [key for key in rest if is_complete and key[:2] not in compared]
        for source, target, _ in stale:
            write_error_line(
                f"error: {LOCK_NAME}: {source} for {target} has an entry but is no longer checked; run "
                "`fakexport lock` to remove the entry"
            )
        return bool(stale)

    def _list_changes(self) -> None:
        """Print how each entry changed, in the order of the checks."""
        for key, entry in self._now.items():
            known = self.locked.get(key)
            change = "added" if known is None else "same" if known == entry else "changed"
            digest = "" if entry.program is None else f", {entry.program.digest[:19]}"
            write_error_line(f"{change}: {entry.source} for {entry.target}: {entry.verdict}{digest}")
        write_error_line(f"wrote {LOCK_NAME}")

    def _note_versions(self) -> None:
        """Print one note if library versions differ from the lock file although the programs do not."""
        moved = {
            (name, known.versions.get(name, "none"), entry.versions.get(name, "none"))
            for key, entry in self._now.items()
            if (known := self.locked.get(key)) is not None and _is_same_program(known, entry)
            for name in known.versions.keys() | entry.versions.keys()
        }
        if changes := [f"{name} {old} -> {new}" for name, old, new in sorted(moved) if old != new]:
            write_note(f"{LOCK_NAME} was written with different versions: {', '.join(changes)}")


def lock_session(
    project: ProjectFile | None, *, is_updating: bool, is_whole: bool, accept: str
) -> LockSession:
    """Read the lock file if its entries are needed, and return the session of a command."""
    from fakexport.checking.lock import LockFileError, read_lock

    path = (Path.cwd() if project is None else project.path.parent) / LOCK_NAME
    locked: Mapping[Key, LockEntry] = {}
    try:
        if path.exists() or not is_updating:
            locked = read_lock(path)
    except LockFileError:
        if not (is_updating and is_whole):  # Otherwise, the whole file is replaced.
            raise
    return LockSession(path, is_updating, is_whole, locked, accept)


def _is_same_program(known: LockEntry, entry: LockEntry) -> bool:
    both = known.program, entry.program
    return None not in both and known.program.digest == entry.program.digest  # type: ignore[union-attr]


def _seen_from(folder: Path, written: str) -> str:
    """Make a source or path relative to `folder`, if it is relative to the working directory."""
    if folder == Path.cwd():
        return written
    prefix, path, rest = named_path(written, Path.cwd()) or ("", "", written)
    if not path or Path(path).is_absolute():
        return written
    return f"{prefix}{Path(os.path.relpath(path, folder)).as_posix()}{rest}"
