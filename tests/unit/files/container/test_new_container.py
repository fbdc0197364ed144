"""Writing: the same bytes each time, read by everybody, there as a whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import zipfile
from pathlib import Path

import pytest
import torch

from fakexport.files import FileWriteError
from fakexport.files.container.reader import read_container
from fakexport.files.container.writer import FileSlice, Streamed, write_container

RECORDS = {
    "models/model.json": b'{"nodes": [' + b'"aten.linear", ' * 1000 + b'""]}',
    "data/weights/weight_0": b"\1\2\3" * 1000,
    "data/weights/weight_1": b"",
    "data/constants/tensor_0": b"x",
    "extra/note.txt": b"text",
}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_reader_sees_the_same(tmp_path):
    path = tmp_path / "model.pt2"
    digests = write_container(path, RECORDS)

    reader = torch._C.PyTorchFileReader(str(path))
    with read_container(path) as container, zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None
        names = [name.removeprefix("model/") for name in zipped.namelist()]
        assert list(container.names) == names == reader.get_all_records() == [d.name for d in digests]
        for name in names:
            content = container.record(name)
            assert content == zipped.read(f"model/{name}") == reader.get_record(name)
            assert content == RECORDS.get(name, content)
        assert container.extent("data/weights/weight_0")[0] == reader.get_record_offset(
            "data/weights/weight_0"
        )


def test_the_same_records_give_the_same_bytes(tmp_path):
    write_container(tmp_path / "a.pt2", RECORDS)
    write_container(tmp_path / "other_name.pt2", dict(reversed(RECORDS.items())))

    assert (tmp_path / "a.pt2").read_bytes() == (tmp_path / "other_name.pt2").read_bytes()


def test_it_carries_no_date_and_no_owner(tmp_path):
    write_container(tmp_path / "a.pt2", RECORDS)

    with zipfile.ZipFile(tmp_path / "a.pt2") as zipped:
        for info in zipped.infolist():
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert (info.external_attr, info.create_system, info.comment, info.extra) == (0, 0, b"", b"")


def test_json_is_deflated_and_tensors_can_be_mapped(tmp_path):
    write_container(tmp_path / "a.pt2", RECORDS)

    with read_container(tmp_path / "a.pt2") as container:
        offset, length = container.extent("data/weights/weight_0")
        view = container.mapped("data/weights/weight_0")
        with pytest.raises(ValueError, match="cannot be mapped"):
            container.extent("models/model.json")
    assert (offset % 64, length) == (0, 3000)
    assert bytes(view) == RECORDS["data/weights/weight_0"]
    assert torch.frombuffer(view, dtype=torch.uint8)[:3].tolist() == [1, 2, 3]


def test_weights_are_streamed_from_files_and_pieces(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"header" + b"w" * 3_000_000 + b"tail")
    pieces = (memoryview(bytearray(b"p" * 1000)) for _ in range(5))
    records = {
        "data/weights/weight_0": FileSlice(tmp_path / "weights.bin", 6, 3_000_000),
        "data/weights/weight_1": Streamed(5000, pieces),
    }

    write_container(tmp_path / "streamed.pt2", records)

    whole = {"data/weights/weight_0": b"w" * 3_000_000, "data/weights/weight_1": b"p" * 5000}
    write_container(tmp_path / "whole.pt2", whole)
    assert (tmp_path / "streamed.pt2").read_bytes() == (tmp_path / "whole.pt2").read_bytes()


@pytest.mark.parametrize("length", [2, 4])
def test_a_source_of_another_length_leaves_the_old_file(tmp_path, length):
    (tmp_path / "a.pt2").write_bytes(b"old")

    with pytest.raises(FileWriteError, match=r"expected . bytes for `extra/x`, got "):
        write_container(tmp_path / "a.pt2", {"extra/x": Streamed(length, [b"abc"])})

    assert (tmp_path / "a.pt2").read_bytes() == b"old"
    assert names_in(tmp_path) == ["a.pt2"]


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a\\b", "", "a//b", "ARCHIVE_FORMAT", "archive_format/x", "\u00e9"]
)
def test_a_name_that_no_archive_may_have(tmp_path, name):
    with pytest.raises(ValueError, match=r"name|only in case|folder"):
        write_container(tmp_path / "a.pt2", {name: b""})

    assert names_in(tmp_path) == []


def test_an_interruption_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "a.pt2").write_bytes(b"old")

    def pieces():
        yield b"x" * 500_000
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_container(tmp_path / "a.pt2", {"extra/x": Streamed(1_000_000, pieces())})

    assert (tmp_path / "a.pt2").read_bytes() == b"old"
    assert names_in(tmp_path) == ["a.pt2"]


def test_the_mode_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_container(tmp_path / "a.pt2", RECORDS)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "a.pt2").stat().st_mode) == 0o640


def test_a_missing_folder_is_one_clear_line(tmp_path):
    with pytest.raises(FileWriteError) as caught:
        write_container(tmp_path / "nowhere" / "a.pt2", RECORDS)

    assert caught.value.errno == errno.ENOENT
    assert str(caught.value) == f"cannot write {tmp_path}/nowhere/a.pt2: No such file or directory"


def test_a_folder_at_the_path_stays(tmp_path):
    (tmp_path / "a.pt2").mkdir()

    with pytest.raises(FileWriteError, match="is a directory, not a regular file"):
        write_container(tmp_path / "a.pt2", RECORDS)

    assert names_in(tmp_path) == ["a.pt2"]
