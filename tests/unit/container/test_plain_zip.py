"""Archives that Python's `zipfile` wrote: valid ones open, ambiguous ones do not."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.container import ArchiveError
from fakexport.container.reader import read_container
from tests.same_nodes import nodes_equal


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A bound archive of fakexport, and one of torch with its example inputs."""
    folder = tmp_path_factory.mktemp("archives")
    example = torch.ones(3, 4)
    program = fe.export(lambda: nn.Linear(4, 2), (example,))
    fe.save(fe.bind(program, dict(nn.Linear(4, 2).state_dict())), folder / "ours.pt2")
    torch.export.save(torch.export.export(nn.Linear(4, 2), (example,)), folder / "stock.pt2")
    return [folder / "ours.pt2", folder / "stock.pt2"]


def zipped_again(path: Path, method: int, *, comment: bytes = b"") -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(content, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        new.comment = comment
    return content.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_zipfile_writes_opens(archives: list[Path], method: int, tmp_path: Path) -> None:
    for path in archives:
        (tmp_path / "again.pt2").write_bytes(zipped_again(path, method))

        found, wanted = fe.load(tmp_path / "again.pt2"), fe.load(path)

        assert nodes_equal(found, wanted) == ()
        for name, tensor in wanted.state_dict.items():
            assert torch.equal(found.state_dict[name], tensor)
            assert found.state_dict[name].data_ptr() % tensor.element_size() == 0
        example = torch.rand(3, 4)
        assert torch.equal(found.module()(example), wanted.module()(example))


def test_the_records_are_those_that_zipfile_and_torch_see(archives: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "again.pt2"
    path.write_bytes(zipped_again(archives[1], zipfile.ZIP_DEFLATED))
    by_torch = torch._C.PyTorchFileReader(str(path))

    with zipfile.ZipFile(path) as archive, read_container(path) as container:
        assert [f"{container.folder}/{name}" for name in container.names] == archive.namelist()
        for name in container.names:
            assert container.record(name) == archive.read(f"{container.folder}/{name}")
            assert container.record(name) == by_torch.get_record(name)


def replaced(old: bytes, new: bytes, which: int) -> Callable[[bytes], bytes]:
    """The change of the first (0) or last (-1) place where these bytes are."""

    def change(content: bytes) -> bytes:
        place = content.index(old) if which == 0 else content.rindex(old)
        return content[:place] + new + content[place + len(old) :]

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (replaced(b"archive_format", b"archive_formaX", 0), "has a different name"),
        (replaced(b"archive_format", b"archive_formaX", -1), "has a different name"),
        (replaced(b"PK\3\4\x14\0\0\0", b"PK\3\4\x14\0\1\0", 0), "disagrees with the central directory"),
        (replaced(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0", 0), "is encrypted, or needs"),
        (replaced(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\x08\0", 0), "is encrypted, or needs"),
        (replaced(b"PK\1\2\x14\3\x14\0", b"PK\1\2\x14\3\x2d\0", 0), "is encrypted, or needs"),
        (lambda content: b"MZ" + content, "does not end where the end record begins"),
        (lambda content: content + b"x", "does not end"),
        (lambda content: content[:-22] + b"x" + content[-22:], "does not end where the end record begins"),
        (lambda content: content[:-1], "does not end"),
        (lambda content: content[:-1] + b"\1", "has a comment"),
        (lambda content: content[:-18] + b"\1\0" + content[-16:], "multi-disk"),
        (lambda content: content[:-14] + b"\1\0\1\0" + content[-10:], "belong to no record"),
    ],
)
def test_a_zip_that_readers_could_see_differently_is_refused(change, reason, archives, tmp_path):
    path = tmp_path / "bent.pt2"
    path.write_bytes(change(zipped_again(archives[1], zipfile.ZIP_STORED)))

    with pytest.raises(ArchiveError, match=reason) as caught:
        read_container(path)

    assert "\n" not in str(caught.value)


def test_a_changed_byte_is_noticed(archives: list[Path], tmp_path: Path) -> None:
    content = bytearray(zipped_again(archives[1], zipfile.ZIP_STORED))
    place = content.index(b"weight_0") + len(b"weight_0")
    content[place] ^= 1
    (tmp_path / "bent.pt2").write_bytes(content)

    with pytest.raises(ArchiveError, match="is damaged: its CRC-32"):
        fe.load(tmp_path / "bent.pt2")


def test_two_records_of_one_name_are_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("model/archive_format", "pt2")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("model/archive_format", "pt2")
    (tmp_path / "two.pt2").write_bytes(content.getvalue())

    with pytest.raises(ArchiveError, match="two records have this name"):
        read_container(tmp_path / "two.pt2")
