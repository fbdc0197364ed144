"""A folder of code belongs to its user alone, and so does every folder above it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakexport.files import PrivateFolderError, fault_of_owner, make_private_folder, private_folder

STRANGER = 54321
is_superuser = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder in which everything is the user's own, whatever the umask is."""
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)


def refusal(path: Path) -> str:
    with pytest.raises(PrivateFolderError) as caught:
        private_folder(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_made_for_its_user_alone(home: Path) -> None:
    os.umask(0)
    path = private_folder(home / "a" / "b")

    make_private_folder(path)

    assert [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent)] == [0o700, 0o700]
    assert private_folder(home / "a" / "b") == path


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_folder_that_everyone_can_write_to_is_refused_with_the_repair(home: Path, mode: int) -> None:
    folder = home / "cache"
    folder.mkdir()
    folder.chmod(mode)

    found = refusal(folder)

    assert found.startswith(f"{folder} is writable by everyone (mode {mode:o}): run `chmod go-w {folder}`")
    folder.chmod(mode & ~0o022)
    assert private_folder(folder) == folder


def test_a_folder_above_it_counts_unless_it_is_sticky(home: Path) -> None:
    (home / "open" / "cache").mkdir(parents=True)

    (home / "open").chmod(0o1777)
    assert private_folder(home / "open" / "cache")
    assert private_folder(home / "open" / "absent")

    (home / "open").chmod(0o777)
    assert f"{home}/open is writable by everyone (mode 777) and contains " in refusal(home / "open" / "cache")
    assert "is writable by everyone" in refusal(home / "open" / "absent")


def test_the_folder_behind_a_link_counts(home: Path) -> None:
    (home / "open").mkdir()
    (home / "open").chmod(0o777)
    (home / "link").symlink_to("open")

    assert "is writable by everyone" in refusal(home / "link")


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to(path.name)])
def test_what_is_no_folder_is_refused(home: Path, make) -> None:
    make(home / "cache")

    assert refusal(home / "cache") == f"{home}/cache is not a folder"


@is_superuser
def test_the_group_of_others_is_refused(home: Path) -> None:
    (home / "cache").mkdir()
    os.chown(home / "cache", -1, STRANGER)
    (home / "cache").chmod(0o775)

    assert "is writable by its group (mode 775): run `chmod go-w" in refusal(home / "cache")


@is_superuser
def test_what_belongs_to_another_user_is_refused(home: Path) -> None:
    (home / "theirs" / "cache").mkdir(parents=True)
    (home / "file").touch()
    os.chown(home / "file", STRANGER, -1)
    os.chown(home / "theirs", STRANGER, -1)

    assert f"{home}/theirs belongs to user {STRANGER} and contains {home}/theirs/cache" in refusal(
        home / "theirs" / "cache"
    )
    assert fault_of_owner((home / "file").stat()) == f"belongs to user {STRANGER}"


def test_a_file_of_the_user_has_no_fault(home: Path) -> None:
    (home / "file").touch(mode=0o600)

    assert fault_of_owner((home / "file").stat()) is None
    (home / "file").chmod(0o602)
    assert fault_of_owner((home / "file").stat()) == "is writable by everyone (mode 602)"
