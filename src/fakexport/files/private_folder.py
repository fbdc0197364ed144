"""A folder whose content is executed: no other user may be able to put something into it.

Source: what sshd asks of a user's files (`StrictModes`; `safe_path` in OpenSSH's misc.c), with sticky folders
such as /tmp allowed on the way, and the user's own group.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fakexport.error import FakexportError


class PrivateFolderError(FakexportError):
    """Other users could write to a folder whose content is trusted. One line, with the fix."""


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Return the real path of a folder that only this user and the superuser can change, or that is missing.

    Every folder on the way counts too: who can write to one can put another folder into its place.

    Raises:
        PrivateFolderError: another user owns one of them, or can write to it; or it is not a folder.
    """
    resolved = Path(os.path.realpath(path))
    for place in (resolved, *resolved.parents):
        try:
            status = place.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise PrivateFolderError(f"{place}: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise PrivateFolderError(f"{place} is not a folder")
        is_shared = place != resolved and bool(status.st_mode & stat.S_ISVTX)
        if (fault := fault_of_owner(status, is_shared=is_shared)) is not None:
            below = "" if place == resolved else f" and contains {resolved}"
            raise PrivateFolderError(
                f"{place} {fault}{below}: {_repair(place, status)}, or pass a folder of your own"
            )
    return resolved


def make_private_folder(path: Path) -> None:
    """Create a folder, and its missing parents, for this user alone.

    Args:
        path: As returned by `private_folder`; what exists is checked again.
    Raises:
        PrivateFolderError: as `private_folder`.
        OSError: it cannot be created.
    """
    missing = [place for place in (path, *path.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
    private_folder(path)


def fault_of_owner(status: os.stat_result, *, is_shared: bool = False) -> str | None:
    """Return who else could have written there: `belongs to user 1001`; None if no one else.

    Always None on Windows: `os.stat` reports neither owners nor modes there.
    """
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to {_user(status.st_uid)}"
    if is_shared:
        return None
    if status.st_mode & stat.S_IWOTH:
        return f"is writable by everyone (mode {_mode(status)})"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"is writable by its group (mode {_mode(status)})"
    return None


def _is_own_group(group: int) -> bool:
    """Return whether this user is the only member of the group, as in a group per user."""
    import grp
    import pwd

    if group == 0:
        return True
    try:
        name, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _repair(place: Path, status: os.stat_result) -> str:
    if status.st_uid not in (0, os.geteuid()):
        return f"run `chown {_user(os.geteuid()).removeprefix('user ')} {place}`"
    return f"run `chmod go-w {place}`"


def _user(number: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):o}"
