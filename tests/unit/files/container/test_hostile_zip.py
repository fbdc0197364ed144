"""Zips that readers could see differently, or that ask for too much, are refused with the reason."""

from __future__ import annotations

import io
import os
import stat
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch

from fakexport.files.container.error import ArchiveError
from fakexport.files.container.reader import Limits, read_container
from tests.unit.files.container.forged_zip import Forged, Part

GOOD = Part(b"model/models/model.json", b'{"graph": 1}' * 20, method=8)
TENSOR = Part(b"model/data/weights/weight_0", bytes(range(200)))


def refusal(path: Path, content: bytes, **options: object) -> str:
    path.write_bytes(content)
    with pytest.raises(ArchiveError) as caught:
        read_container(path, **options)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert len(line.splitlines()) == 1
    return line


def test_the_forger_can_write_an_honest_archive(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(Forged([GOOD, TENSOR]).bytes())

    with read_container(path) as container:
        names = container.names
        contents = [container.record(name) for name in names]
    with zipfile.ZipFile(path) as zipped:
        assert [f"model/{name}" for name in names] == zipped.namelist()
        assert contents == [zipped.read(name) for name in zipped.namelist()]
    reader = torch._C.PyTorchFileReader(str(path))
    assert list(names) == reader.get_all_records()
    assert contents == [reader.get_record(name) for name in names]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"model/../escape", "contains the path component"),
        (b"../model/escape", "contains the path component"),
        (b"model/./x", "contains the path component"),
        (b"/etc/passwd", "absolute"),
        (b"model//x", "empty part"),
        (b"model\\models\\x", "backslash"),
        (b"C:/model/x", "drive letter"),
        (b"model/x:stream", "colon"),
        (b"model/a\0b", "null character"),
        (b"model/a\nb", "control"),
        (b"model/a\x1b[31m", "control"),
        ("model/a\u202eb".encode(), "non-ASCII"),
        ("model/\u00e9".encode(), "non-ASCII"),
        (b"model/" + b"a/" * 20 + b"x", "folders"),
        (b"model/\xff\xfe", "not UTF-8"),
        (b"model/folder/", "a folder"),
        (b"model/aux.json", "is reserved"),
        (b"model/dot.", "ends in a dot"),
        (b"model/ x", "surrounding spaces"),
        (b"", "empty"),
        (b"naked", "not in a folder"),
        (b"other/models/model.json", "a different folder"),
        (b"MODEL/models/model.json", "a different folder"),
        (b"model/" + b"x" * 2000, "limit"),
    ],
)
def test_a_name_that_means_something_else_elsewhere(tmp_path, name, reason):
    assert reason in refusal(tmp_path / "a.pt2", Forged([Part(name, b"x")]).bytes())


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (b"model/extra/x", b"model/extra/x", "two records"),
        (b"model/extra/x", b"model/extra/X", "only in case"),
        (b"model/extra/x", b"model/extra/x/y", "is a record, but also the folder"),
    ],
)
def test_two_names_for_one_record(tmp_path, first, second, reason):
    content = Forged([Part(first, b"1"), Part(second, b"2")]).bytes()

    assert reason in refusal(tmp_path / "a.pt2", content)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (Part(b"model/extra/x", b"1", flags=0x809), "encrypted"),
        (Part(b"model/extra/x", b"1", flags=0x848), "encrypted"),
        (Part(b"model/extra/x", b"1", flags=0x8), "UTF-8"),
        (Part(b"model/extra/x", b"1", flags=0x818), "is not what torch"),
        (Part(b"model/extra/x", b"1", method=12), "unknown method 12"),
        (Part(b"model/extra/x", b"1", method=14), "unknown method 14"),
        (Part(b"model/extra/x", b"1", attributes=stat.S_IFLNK << 16), "symbolic link"),
        (Part(b"model/extra/x", b"1", attributes=stat.S_IFIFO << 16), "special file"),
        (Part(b"model/extra/x", b"1", attributes=stat.S_IFDIR << 16), "folder"),
        (Part(b"model/extra/x", b"1", attributes=0x10), "is not what torch"),
        (Part(b"model/extra/x", b"1", comment=b"hello"), "comment"),
        (Part(b"model/extra/x", b"1", extra=b"up\4\0abcd"), "extra field"),
        (Part(b"model/extra/x", b"1", disk=1), "disk 1"),
        (Part(b"model/extra/x", b"1", date=0x5921), "is not what torch"),
        (Part(b"model/extra/x", b"1", local_name=b"model/extra/y"), "local header disagrees"),
        (Part(b"model/extra/x", b"1", local_name=b"model/extra/xx"), "local header disagrees"),
        (Part(b"model/extra/x", b"1", local_method=8), "local header disagrees"),
        (Part(b"model/extra/x", b"1", descriptor=b"PK\7\x08" + b"\0" * 12), "data descriptor disagrees"),
        (Part(b"model/extra/x", b"1", before=b"hidden"), "does not follow"),
        (Part(b"model/extra/x", b"1", header=0), "overlaps"),
        (Part(b"model/extra/x", b"1", header=1 << 40), "does not follow"),
        (Part(b"model/extra/x", b"1", padding=b"Z" * 10), "bytes begin at"),
        (Part(b"model/extra/x", b"1", size=2), "is stored"),
        (Part(b"model/extra/x", b"", packed=1), "is stored"),
        (Part(b"model/extra/x", b"1", size=1 << 40, packed=1 << 40), "central directory"),
        (Part(b"model/extra/x", b"1", size=0xFFFFFFFF, packed=1), "is stored"),
        (Part(b"model/extra/x", b"1", extra=b"\1\0\x08\0" + b"\0" * 8), "extra field"),
        (Part(b"model/extra/x.json", b"", method=8, size=1 << 40, packed=9), "limit"),
        (Part(b"model/extra/x.json", b"", method=8, size=0), "compressed but empty"),
    ],
    ids=str,
)
def test_an_entry_that_is_no_plain_record(tmp_path, part, reason):
    assert reason in refusal(tmp_path / "a.pt2", Forged([GOOD, part, TENSOR]).bytes())


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (Forged([GOOD], behind=b"x"), "does not end"),
        (Forged([GOOD], behind=b"PK\5\6" + b"\0" * 18), "has no zip64 end record"),
        (Forged([GOOD], comment=b"hi"), "does not end"),
        (Forged([GOOD], before_directory=b"hidden"), "between the last record"),
        (Forged([GOOD], behind_directory=b"hidden"), "does not end where"),
        (Forged([GOOD], with_zip64=False), "has no zip64 end record"),
        (Forged([GOOD], disk=1), "multi-disk"),
        (Forged([GOOD], count=4), "bytes follow the last entry"),
        (Forged([GOOD], count=6), "truncated"),
        (Forged([GOOD], count=1 << 60), "the limit is"),
        (Forged([GOOD], count=0, end_count=0), "without records"),
        (Forged([GOOD], end_count=1), "disagree"),
        (Forged([GOOD], directory_bytes=1 << 60), "the limit is"),
        (Forged([GOOD], directory_offset=1 << 60), "does not end where"),
        (Forged([GOOD], directory_offset=0), "does not end where"),
        (Forged([Part(b"model/x", b"1", before=b"MZ executable")], with_frame=False), "does not follow"),
    ],
    ids=str,
)
def test_an_end_that_does_not_add_up(tmp_path, forged, reason):
    assert reason in refusal(tmp_path / "a.pt2", forged.bytes())


def test_the_layout_before_torch_2_8_is_named(tmp_path):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as zipped:
        zipped.writestr("version", "1")
        zipped.writestr("serialized_exported_program.json", "{}")

    line = refusal(tmp_path / "a.pt2", content.getvalue())

    assert "legacy layout from before torch 2.8 (serialized_exported_program.json), rejected by" in line


def test_what_torch_save_writes_is_named(tmp_path):
    torch.save({"x": torch.ones(2)}, tmp_path / "a.pt2")

    assert "`torch.save`" in refusal(tmp_path / "a.pt2", (tmp_path / "a.pt2").read_bytes(), trust=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.15
def test_a_torchscript_archive_is_named(tmp_path):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "a.pt2")

    assert "TorchScript" in refusal(tmp_path / "a.pt2", (tmp_path / "a.pt2").read_bytes(), trust=True)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        (b"data/weights/model.pt", b"\x80\x02N.", "pickled record"),
        (b"data/weights/custom_obj_0", b"x", "pickled object"),
        (b"data/constants/custom_obj_0.pt", b"x", "pickled object"),
        (b"data/constants/opaque_obj_0", b"x", "pickled object"),
        (b"data/aotinductor/model/model.wrapper.so", b"\x7fELF", "compiled code"),
        (b"data/aotinductor/model/x.json", b"{}", "compiled code"),
        (b"extra/lib.so", b"\x7fELF", "native library"),
        (b"extra/lib.so.1", b"\x7fELF", "native library"),
        (b"extra/lib.DLL", b"MZ", "native library"),
        (b"extra/lib.dylib", b"x", "native library"),
        (b"extra/setup.py", b"x", "native library or code"),
        (b"extra/x.pkl", b"x", "pickled record"),
        (b"whatever", b"x", "unknown purpose"),
        (
            b"data/weights/model_weights_config.json",
            b'{"config":{"w":{"use_pickle":true}}}',
            "pickled payload",
        ),
        (b"data/weights/model_weights_config.json", b'{"config":{"w":{"use_pickle":1}}}', "pickled payload"),
        (b"data/weights/model_weights_config.json", b'{"config":{"w":{}}}', "pickled payload"),
        (
            b"data/constants/model_constants_config.json",
            rb'{"config":{"w":{"use\u005fpickle":true}}}',
            "pickled payload",
        ),
    ],
)
def test_what_could_run_code_needs_trust(tmp_path, name, data, reason):
    content = Forged([GOOD, Part(b"model/" + name, data)]).bytes()

    line = refusal(tmp_path / "a.pt2", content)

    assert reason in line
    assert name.decode() in line
    assert "rejected by default" in line
    read_container(tmp_path / "a.pt2", trust=True).close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"config":{"w":{"use_pickle":false,"use_pickle":true}}}', "twice"),
        (b"[" * 100_000, "too deep"),
        (b"{", "not JSON"),
        (b'{"config": NaN}', "NaN"),
        (b'{"config": ' + b"9" * 5000 + b"}", "4300 digits"),
        (b'{"config": 1e999}', "no object `config`"),
        (b"\xff", "not UTF-8"),
        (b"[]", "no object `config`"),
        (b'{"config":{"w":7}}', "is not an object"),
    ],
)
def test_a_payload_configuration_that_is_none(tmp_path, text, reason):
    part = Part(b"model/data/weights/model_weights_config.json", text)

    assert reason in refusal(tmp_path / "a.pt2", Forged([part]).bytes())


def test_empty_example_inputs_need_no_trust(tmp_path):
    content = Forged([Part(b"model/data/sample_inputs/model.pt", b"")]).bytes()
    (tmp_path / "a.pt2").write_bytes(content)

    read_container(tmp_path / "a.pt2").close()


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        (b"archive_format", b"zip", "archive_format"),
        (b"archive_version", b"1", "archive_version"),
        (b"byteorder", b"big", "byteorder"),
        (b".data/version", b"99\n", "version"),
    ],
)
def test_a_frame_that_nobody_can_read(tmp_path, name, data, reason):
    frame = {
        b"archive_format": b"pt2",
        b"archive_version": b"0",
        b"byteorder": b"little",
        b".data/version": b"6\n",
    }
    parts = [Part(b"model/" + key, value) for key, value in (frame | {name: data}).items()]

    line = refusal(tmp_path / "a.pt2", Forged(parts, with_frame=False).bytes(), trust=True)

    assert reason in line
    assert "is supported" in line


def test_a_bomb_that_inflates_beyond_its_declared_size(tmp_path):
    part = Part(b"model/extra/x.json", b"0" * (64 << 20), method=8)
    part.size = 500_000
    (tmp_path / "a.pt2").write_bytes(Forged([part]).bytes())

    tracemalloc.start()
    with read_container(tmp_path / "a.pt2") as container, pytest.raises(ArchiveError, match="more than the"):
        container.record("extra/x.json")
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak_bytes < 8 << 20


def test_a_bomb_that_is_honest_about_its_size(tmp_path):
    part = Part(b"model/extra/x.json", b"0" * (64 << 20), method=8)

    assert "a ratio above 256" in refusal(tmp_path / "a.pt2", Forged([part]).bytes())


def test_many_small_bombs_together(tmp_path):
    parts = [Part(b"model/extra/%d.json" % number, b"0" * (1 << 20), method=8) for number in range(5)]

    line = refusal(tmp_path / "a.pt2", Forged(parts).bytes(), limits=Limits(inflated_bytes=4 << 20))

    assert "together" in line


@pytest.mark.parametrize("behind", [b"x", b"\0" * 100])
def test_bytes_behind_a_deflate_stream(tmp_path, behind):
    part = Part(b"model/extra/x.json", b"{}" * 100, method=8)
    part.data += behind
    part.packed = len(part.data)
    (tmp_path / "a.pt2").write_bytes(Forged([part]).bytes())

    with (
        read_container(tmp_path / "a.pt2") as container,
        pytest.raises(ArchiveError, match="followed by other data"),
    ):
        container.record("extra/x.json")


def test_idle_bits_at_the_end_of_a_deflate_stream(tmp_path):
    part = Part(b"model/extra/x.json", b'{"key": "value"}' * 20, method=8)
    if part.data[-1] & 0x80:
        pytest.skip("this zlib fills the last byte")
    part.data = part.data[:-1] + bytes([part.data[-1] | 0x80])
    (tmp_path / "a.pt2").write_bytes(Forged([part]).bytes())

    with (
        read_container(tmp_path / "a.pt2") as container,
        pytest.raises(ArchiveError, match="followed by other data"),
    ):
        container.record("extra/x.json")


def test_a_wrong_checksum(tmp_path):
    (tmp_path / "a.pt2").write_bytes(Forged([Part(b"model/extra/x", b"content", crc=7)]).bytes())

    with read_container(tmp_path / "a.pt2") as container, pytest.raises(ArchiveError, match="CRC-32"):
        container.verify("extra/x")


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "a.pt2")

    with pytest.raises(OSError, match="not a regular file"):
        read_container(tmp_path / "a.pt2")


@pytest.mark.parametrize("content", [b"", b"PK", b"\0" * 1000, b"not a zip" * 100])
def test_no_zip_at_all(tmp_path, content):
    line = refusal(tmp_path / "a.pt2", content)

    assert "empty or truncated" in line or "does not end like a zip" in line
