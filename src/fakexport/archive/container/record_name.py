"""Names of records: which may stand in an archive."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["comparable", "fault_of_name", "fault_of_names"]

_MOST_FOLDERS = 16
_DRIVE = re.compile(r"[A-Za-z]:")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def fault_of_name(name: str) -> str | None:
    """Why a record or a file beside the archive may not be called so; None for a good name.

    A good name is a relative path with `/` between its parts in ASCII that means the same everywhere.
    """
    if not name:
        return "the name is empty"
    if "\0" in name:
        return "the name holds a NUL"
    if not name.isascii():
        return "the name holds a character outside of ASCII"
    if not name.isprintable():
        return "the name holds a control character"
    if "\\" in name:
        return "the name holds a backslash"
    if name.startswith("/"):
        return "the name is an absolute path"
    if _DRIVE.match(name):
        return "the name starts with a drive letter"
    if ":" in name:
        return "the name holds a colon"
    if name.endswith("/"):
        return "the name is that of a folder"
    if name.count("/") > _MOST_FOLDERS:
        return f"the name leads through more than {_MOST_FOLDERS} folders"
    return next((fault for part in name.split("/") if (fault := _fault_of_part(part))), None)


def _fault_of_part(part: str) -> str | None:
    if part == "":
        return "the name has an empty part"
    if part in {".", ".."}:
        return f"the name leaves its folder through `{part}`"
    if part != part.strip() or part.endswith("."):
        return "a part of the name ends in a dot or has space around it"
    if _RESERVED.fullmatch(part):
        return "the name is one that Windows reserves for a device"
    return None


def comparable(name: str) -> str:
    """The name as a reader sees it that ignores case: torch does, and so do some file systems."""
    return name.lower()


def fault_of_names(names: Iterable[str]) -> tuple[str, str] | None:
    """The first name that stands for another one too, and why; None if each stands for itself."""
    seen: dict[str, str] = {}
    for name in names:
        key = comparable(name)
        if key in seen:
            same = seen[key] == name
            return name, "two records have this name" if same else f"only case tells it from `{seen[key]}`"
        seen[key] = name
    for key, name in seen.items():
        folder = key.rpartition("/")[0]
        while folder:
            if folder in seen:
                return name, f"`{seen[folder]}` is a record and the folder of this one"
            folder = folder.rpartition("/")[0]
    return None
