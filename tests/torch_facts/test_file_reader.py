"""torch's own reader of archives: what it believes, and what `files.container` copies from its writer."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import pytest
import torch

from fakexport.files.container.contents import FRAME_RECORDS
from fakexport.files.container.framing import NO_DATE, SATURATED, Entry, local_header
from fakexport.files.container.reader import read_container
from tests.unit.files.container.forged_zip import Forged, Part


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    path = tmp_path_factory.mktemp("stock") / "stock.pt2"
    program = torch.export.export(torch.nn.Linear(3, 4), (torch.ones(2, 3),))
    manifest = json.dumps({"format": "fakexport.archive/1"})
    torch.export.save(program, path, extra_files={"fakexport/manifest.json": manifest})
    return path


def names_of(path) -> list[str]:
    return torch._C.PyTorchFileReader(str(path)).get_all_records()


def test_an_archive_of_torch_is_accepted_whole(stock):
    with read_container(stock, trust=True) as container, zipfile.ZipFile(stock) as zipped:
        for name in container.names:
            assert container.record(name) == zipped.read(f"{container.folder}/{name}")
        assert list(container.names) == names_of(stock)
        assert zipped.infolist()[0].date_time == (1980, 0, 0, 0, 0, 0)
        assert {name: container.record(name) for name in FRAME_RECORDS} == FRAME_RECORDS
    with (
        read_container(stock) as container,
        zipfile.ZipFile(io.BytesIO(container.record("data/sample_inputs/model.pt"))) as inputs,
    ):
        assert any(name.endswith("/data.pkl") for name in inputs.namelist())


def test_torch_hands_extra_records_on_unread(stock):
    files = {"fakexport/manifest.json": ""}

    loaded = torch.export.load(stock, extra_files=files)

    assert json.loads(files["fakexport/manifest.json"]) == {"format": "fakexport.archive/1"}
    assert loaded.state_dict.keys() == {"weight", "bias"}


X = Part(b"model/extra/x", b"1")
TWICE = [X, Part(b"model/extra/x", b"2"), Part(b"model/../../x", b"3")]
BELIEVED = {
    "two of one name, and one that traverses": (Forged(TWICE), ["extra/x", "extra/x", "../../x"]),
    "another name in the local header": (
        Forged([Part(b"model/extra/x", b"1", local_name=b"model/extra/y")]),
        ["extra/x"],
    ),
    "data behind the end": (Forged([X], behind=b"anything"), ["extra/x"]),
}


@pytest.mark.parametrize("case", BELIEVED)
def test_torch_believes(case, tmp_path):
    forged, names = BELIEVED[case]
    (tmp_path / "a.pt2").write_bytes(forged.bytes())

    assert names_of(tmp_path / "a.pt2")[-len(names) :] == names


def test_torch_ignores_checksums_and_case_and_refuses_an_archive_without_version(tmp_path):
    content = Forged([Part(b"model/extra/x", b"content")]).bytes().replace(b"content", b"CONTENT")
    (tmp_path / "a.pt2").write_bytes(content)
    (tmp_path / "b.pt2").write_bytes(Forged([Part(b"model/x", b"1")], with_frame=False).bytes())

    assert torch._C.PyTorchFileReader(str(tmp_path / "a.pt2")).get_record("EXTRA/X") == b"CONTENT"
    with pytest.raises(RuntimeError, match="version"):
        names_of(tmp_path / "b.pt2")


def test_the_header_of_a_record_beyond_32_bits():
    """Taken from PyTorchFileWriter of torch 2.13 writing 2**32 + 100 bytes, and 3 bytes behind them."""
    size = (1 << 32) + 100
    large = Entry("archive/data/weights/weight_0", 0, 0xA92A4CE5, size, size, 64, 192)
    behind = Entry("archive/data/weights/weight_1", 0, 0x352441C2, 3, 3, 0x10000013C, 4294967744)

    texts = [local_header(entry, NO_DATE) for entry in (large, behind)]

    assert size > SATURATED
    assert texts[0].hex().startswith("504b0304000008080000000000000000000000000000000000001d004500")
    assert texts[0][59:79] == struct.pack("<HHQQ", 1, 16, size, size)
    assert texts[1].hex().startswith("504b0304000008080000000000000000000000000000000000001d004900")
    assert texts[1][59:71] == struct.pack("<HHQ", 1, 8, 0x10000013C)
    assert texts[1][71:75] == b"FB\x39\0"
