"""torch's own reader of archives: what it believes, and what `archive.framing` copies from its writer."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import pytest
import torch

from fakexport.container.contents import FRAME_RECORDS
from fakexport.container.framing import NO_DATE, SATURATED, Entry, local_header
from fakexport.container.reader import read_container
from fakexport.container.writer import write_container
from tests.unit.container.forged_zip import Forged, Part


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    path = tmp_path_factory.mktemp("stock") / "stock.pt2"
    program = torch.export.export(torch.nn.Linear(3, 4), (torch.ones(2, 3),))
    torch.export.save(program, path, extra_files={"note.txt": "text"})
    return path


def names_of(path) -> list[str]:
    return torch._C.PyTorchFileReader(str(path)).get_all_records()


def test_an_archive_of_torch_is_accepted_whole(stock):
    with read_container(stock, trust=True) as container, zipfile.ZipFile(stock) as zipped:
        for name in container.names:
            assert container.record(name) == zipped.read(f"{container.folder}/{name}")
        assert list(container.names) == names_of(stock)
        assert zipped.infolist()[0].date_time == (1980, 0, 0, 0, 0, 0)


def test_its_example_inputs_are_pickled(stock):
    with (
        read_container(stock) as container,
        zipfile.ZipFile(io.BytesIO(container.record("data/sample_inputs/model.pt"))) as inputs,
    ):
        assert any(name.endswith("/data.pkl") for name in inputs.namelist())


def test_the_frame_is_what_torch_writes(stock):
    with read_container(stock, trust=True) as container:
        assert {name: container.record(name) for name in FRAME_RECORDS} == FRAME_RECORDS


def test_a_missing_version_is_refused_by_torch(tmp_path):
    (tmp_path / "a.pt2").write_bytes(Forged([Part(b"model/x", b"1")], with_frame=False).bytes())

    with pytest.raises(RuntimeError, match="version"):
        names_of(tmp_path / "a.pt2")


def test_torch_ignores_checksums(tmp_path):
    content = Forged([Part(b"model/extra/x", b"content")]).bytes().replace(b"content", b"CONTENT")
    (tmp_path / "a.pt2").write_bytes(content)

    assert torch._C.PyTorchFileReader(str(tmp_path / "a.pt2")).get_record("extra/x") == b"CONTENT"


def test_torch_ignores_case(tmp_path):
    write_container(tmp_path / "a.pt2", {"extra/x": b"content"})

    assert torch._C.PyTorchFileReader(str(tmp_path / "a.pt2")).get_record("EXTRA/X") == b"content"


def test_torch_takes_two_records_of_one_name_and_traversing_ones(tmp_path):
    parts = [Part(b"model/extra/x", b"1"), Part(b"model/extra/x", b"2"), Part(b"model/../../x", b"3")]
    (tmp_path / "a.pt2").write_bytes(Forged(parts).bytes())

    assert names_of(tmp_path / "a.pt2")[-3:] == ["extra/x", "extra/x", "../../x"]


def test_torch_ignores_the_name_in_the_local_header(tmp_path):
    part = Part(b"model/extra/x", b"1", local_name=b"model/extra/y")
    (tmp_path / "a.pt2").write_bytes(Forged([part]).bytes())

    assert names_of(tmp_path / "a.pt2")[-1] == "extra/x"


def test_torch_believes_data_behind_the_end(tmp_path):
    (tmp_path / "a.pt2").write_bytes(Forged([Part(b"model/extra/x", b"1")], behind=b"anything").bytes())

    assert names_of(tmp_path / "a.pt2")[-1] == "extra/x"


def test_torch_hands_extra_records_on_unread(tmp_path):
    manifest = json.dumps({"format": "fakexport.archive/1"})
    program = torch.export.export(torch.nn.Linear(3, 4), (torch.ones(2, 3),))
    torch.export.save(program, tmp_path / "a.pt2", extra_files={"fakexport/manifest.json": manifest})

    files = {"fakexport/manifest.json": ""}
    loaded = torch.export.load(tmp_path / "a.pt2", extra_files=files)

    assert files == {"fakexport/manifest.json": manifest}
    assert loaded.state_dict.keys() == {"weight", "bias"}


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
