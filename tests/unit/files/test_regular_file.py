"""A file is opened once; what is at its path later does not matter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakexport.files import open_below, open_regular, read_file


def test_everything_is_read_of_the_file_that_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"first")
    (tmp_path / "b").write_bytes(b"other")

    with open_regular(path) as file:
        (tmp_path / "b").replace(path)

        assert file.read_at(1, 3) == b"irs"
        assert file.read(100) == b"first"
        assert bytes(file.mapped()) == b"first"
        assert b"".join(file.pieces(2)) == b"rst"
        assert file.same_file.read_bytes() == b"first"


def test_a_mapping_outlives_the_file_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first")

    with open_regular(tmp_path / "a") as file:
        memory = file.mapped()
    memory[0] = 0

    assert bytes(memory) == b"\0irst"
    assert (tmp_path / "a").read_bytes() == b"first"


def test_a_closed_file_is_not_read_through_the_descriptor_of_another(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first")
    file = open_regular(tmp_path / "a")
    file.close()

    with open_regular(tmp_path / "a"), pytest.raises(OSError, match="Bad file descriptor"):
        file.read_at(0, 1)


def test_a_file_is_closed_with_its_last_user(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first")
    lowest = os.open(tmp_path / "a", os.O_RDONLY)
    os.close(lowest)

    for _ in range(2):
        open_regular(tmp_path / "a").read_at(0, 1)

    assert os.open(tmp_path / "a", os.O_RDONLY) == lowest
    os.close(lowest)


@pytest.mark.parametrize("most_bytes", [0, 4])
def test_no_more_than_the_limit_is_read(tmp_path: Path, most_bytes: int) -> None:
    (tmp_path / "a").write_bytes(b"first")

    with pytest.raises(OSError, match=f"has more than {most_bytes} bytes"):
        read_file(tmp_path / "a", most_bytes=most_bytes)

    assert read_file(tmp_path / "a", most_bytes=5) == b"first"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux")
def test_a_file_that_says_that_it_is_empty_is_bounded_too() -> None:
    assert Path("/proc/self/status").stat().st_size == 0
    assert b"VmRSS" in read_file("/proc/self/status", most_bytes=1 << 20)
    with pytest.raises(OSError, match="has more than 8 bytes"):
        read_file("/proc/self/status", most_bytes=8)


def test_links_are_followed_by_path_and_not_below_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"first")
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "folder" / "b").symlink_to("a")

    assert read_file(tmp_path / "link" / "b", most_bytes=5) == b"first"
    assert open_below(tmp_path, "folder/a").read(5) == b"first"
    for name in ("link/a", "folder/b"):
        with pytest.raises(OSError, match="symbolic link"):
            open_below(tmp_path, name)


@pytest.mark.parametrize("name", ["", "../a", "/etc/passwd", "folder/../../a", "./a", "folder//a"])
def test_a_name_stays_below_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "folder").mkdir()

    with pytest.raises(OSError, match="is not a plain relative path"):
        open_below(tmp_path / "folder", name)
