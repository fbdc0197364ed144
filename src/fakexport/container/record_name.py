"""Names of records: which ones an archive may contain."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MOST_FOLDERS = 16
_DRIVE = re.compile(r"[A-Za-z]:")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def fault_of_name(name: str) -> str | None:
    """Return why a record or a file next to the archive may not have this name; None for a good name.

    A good name is a relative path with `/` between its parts in ASCII that means the same everywhere.
    """
    if not name:
        return "the name is empty"
    if "\0" in name:
        return "the name contains a NUL"
    if not name.isascii():
        return "the name contains a non-ASCII character"
    if not name.isprintable():
        return "the name contains a control character"
    if "\\" in name:
        return "the name contains a backslash"
    if name.startswith("/"):
        return "the name is an absolute path"
    if _DRIVE.match(name):
        return "the name starts with a drive letter"
    if ":" in name:
        return "the name contains a colon"
    if name.endswith("/"):
        return "the name is that of a folder"
    if name.count("/") > _MOST_FOLDERS:
        return f"the name has more than {_MOST_FOLDERS} folders"
    return next((fault for part in name.split("/") if (fault := _fault_of_part(part))), None)


def _fault_of_part(part: str) -> str | None:
    if part == "":
        return "the name has an empty part"
    if part in {".", ".."}:
        return f"the name leaves its folder through `{part}`"
    if part != part.strip() or part.endswith("."):
        return "a part of the name ends in a dot or has surrounding spaces"
    if _RESERVED.fullmatch(part):
        return "the name is reserved for a device on Windows"
    return None


def comparable(name: str) -> str:
    """Return the name for comparison without case, as torch and some file systems compare."""
    return name.lower()


def fault_of_names(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first name that is ambiguous, and why; None if there is none."""
    seen: dict[str, str] = {}
    for name in names:
        key = comparable(name)
        if key in seen:
            same = seen[key] == name
            return name, "two records have this name" if same else (
                f"it differs from `{seen[key]}` only in case"
            )
        seen[key] = name
    for key, name in seen.items():
        folder = key.rpartition("/")[0]
        while folder:
            if folder in seen:
                return name, f"`{seen[folder]}` is a record, but also the folder of this one"
            folder = folder.rpartition("/")[0]
    return None
