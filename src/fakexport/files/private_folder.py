"""Check that no other user can write to a folder whose content is executed.

The rules are those that sshd applies to a user's files (`StrictModes`; `safe_path` in OpenSSH's misc.c), with
two exceptions: sticky parent folders such as /tmp, and write access for the user's own group, are allowed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fakexport.error import FakexportError


class PrivateFolderError(FakexportError):
    """Other users could write to a folder whose content is trusted. The message is one line with the fix."""


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Return the resolved path of a folder, which must be missing or writable only by this user and root.

    All parent folders are also checked, because anyone who can write to a parent can replace the folder.

    Raises:
        PrivateFolderError: Another user owns or can write to one of the folders, or the path is not a folder.
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
    """Create a folder and its missing parents for this user only, then check all of them."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
    private_folder(path)


def fault_of_owner(status: os.stat_result, *, is_shared: bool = False) -> str | None:
    """Return why another user could write to a folder, such as `belongs to user 1001`, or None if no one can.

    On Windows, the result is always None, because `os.stat` reports neither owners nor modes.
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
    """Return whether this user is the only member of a group. For root's group, return True."""
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
