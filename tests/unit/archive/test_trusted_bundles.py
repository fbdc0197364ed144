"""Packages of several programs that only torch reads: on trust, and never as something that they are not."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import package_pt2

import fakexport as fe
from fakexport.archive import verify_archived_weights
from fakexport.archive.loading import load_archive
from fakexport.archive.methods import methods_of
from fakexport.files.container import ArchiveError
from fakexport.files.container.writer import write_container
from tests.unit.archive.bundles import IMAGE, PREFIXES, STATE, assert_gives, live, speller
from tests.unit.archive.described import records_of
from tests.unit.archive.test_stock_archives import legacy, pickle_a_weight

NOTES = ("trusted: torch read the file, which can run code from it",)


def package(path: Path, programs: dict[str, ExportedProgram]) -> Path:
    """What torch writes by default: with the example inputs, pickled."""
    package_pt2(str(path), exported_programs=programs)
    return path


def fake(width: int) -> ExportedProgram:
    """A program with fake weights and real example inputs."""
    example = torch.ones(1, width)
    program = fe.export(lambda: nn.Linear(width, 2), (example,))
    program.example_inputs = ((example,), {})
    return program


def with_record(path: Path, name: str, to: Path) -> Path:
    """The package with an empty object as this record."""
    write_container(to, {**records_of(path, trust=True), name: b"{}"}, folder_name="bent")
    return to


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    programs = live(speller())
    path = package(tmp_path_factory.mktemp("trusted") / "pickled.pt2", programs)
    pickle_a_weight(path, "encode", programs["encode"].state_dict)
    return path


def test_torch_reads_all_programs_of_a_trusted_file(pickled: Path) -> None:
    loaded = load_archive(pickled, is_whole=True, trust=True)

    assert loaded.notes == NOTES
    assert loaded.bundle.is_bound
    assert_gives(loaded.bundle, speller())
    assert torch.equal(loaded.bundle["encode"].example_inputs[0][0], IMAGE)
    assert loaded.bundle.shared == ()  # Equal names are not one weight, since nothing says so.
    assert {about.weights for about in loaded.manifest.methods.values()} == {"inside"}
    assert verify_archived_weights(pickled, trust=True).is_bindable


def test_torch_reads_one_program_of_a_trusted_file(pickled: Path) -> None:
    loaded = load_archive(pickled, method="decode", trust=True)

    assert loaded.notes == NOTES
    assert torch.equal(loaded.program.example_inputs[0][1], STATE)
    described = {name for tensor in loaded.only.tensors for name in (tensor.name, *tensor.aliases)}
    assert described == loaded.program.state_dict.keys()
    assert sorted(methods_of(pickled, trust=True)) == ["decode", "encode"]


def test_trust_changes_nothing_of_what_needs_none(tmp_path: Path) -> None:
    fe.save_bundle(live(speller()), tmp_path / "ours.pt2", prefixes=PREFIXES)

    loaded = load_archive(tmp_path / "ours.pt2", is_whole=True, trust=True)

    assert loaded.notes == ()
    assert dict(loaded.bundle.prefixes) == PREFIXES
    assert_gives(loaded.bundle, speller())


def test_trust_does_not_make_zeros_of_fake_weights(tmp_path: Path) -> None:
    path = package(tmp_path / "fakes.pt2", {"one": fake(3), "two": fake(4)})

    bundle = fe.load_bundle(path, trust=True)

    assert not bundle.is_bound
    assert all(fe.is_fake(t) for program in bundle.values() for t in program.state_dict.values())
    assert fe.is_fake(fe.load(path, method="two", trust=True).state_dict["weight"])
    part = package(tmp_path / "part.pt2", {"one": fake(3), "two": live(speller())["encode"]})
    with pytest.raises(ArchiveError, match="the weights of two are bound, but the weights of one are not"):
        fe.load_bundle(part, trust=True)


def damaged(path: Path, to: Path) -> Path:
    """The file with another bit in its first weight."""
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data/weights/weight_0"))
        data = archive.read(name)
    content = bytearray(path.read_bytes())
    content[content.index(data)] ^= 1
    to.write_bytes(content)
    return to


def test_trust_opens_no_damaged_file(pickled: Path, tmp_path: Path) -> None:
    bent = damaged(pickled, tmp_path / "damaged.pt2")

    for read in (fe.load_bundle, lambda path, trust: fe.load(path, method="decode", trust=trust)):
        with pytest.raises(ArchiveError, match="damaged"):
            read(bent, trust=True)


def test_the_weights_of_a_trusted_file_are_checked_only_on_demand(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(nn.Linear(3, 2), (IMAGE,)), tmp_path / "one.pt2")
    native = with_record(tmp_path / "one.pt2", "data/aotinductor/model/x.so", tmp_path / "native.pt2")
    bent = damaged(native, tmp_path / "bent.pt2")

    with pytest.raises(ArchiveError, match="rejected by default"):
        fe.load(native)
    with pytest.raises(ArchiveError, match="damaged"):
        fe.load(bent, trust=True)
    assert not fe.is_fake(fe.load(bent, trust=True, check_weights=False).state_dict["weight"])


def test_what_torch_cannot_read_is_one_line(pickled: Path, tmp_path: Path) -> None:
    with_record(pickled, "models/encode.json", tmp_path / "bent.pt2")

    for path in (tmp_path / "bent.pt2", with_record(pickled, "models/notes.txt", tmp_path / "notes.pt2")):
        with pytest.raises(ArchiveError, match="torch's load_pt2 cannot read it: ") as caught:
            fe.load_bundle(path, trust=True)
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ArchiveError, match=r"has no method 'notes\.txt'; the methods are"):
        fe.load(tmp_path / "notes.pt2", method="notes.txt", trust=True)


def test_one_program_is_a_bundle_of_one_trusted_or_not(pickled: Path, tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(3, 2), (IMAGE,))
    torch.export.save(program, tmp_path / "one.pt2")
    old = legacy(tmp_path / "old.pt2", program)

    for path in (tmp_path / "one.pt2", old):
        assert fe.load_bundle(path, trust=True).is_alone
        with pytest.raises(ArchiveError, match="is not a bundle, so it has no method 'encode'"):
            fe.load(path, method="encode", trust=True)
    with pytest.raises(ArchiveError, match=r"is a bundle of the methods .*: choose one"):
        fe.load(pickled, trust=True)
    with pytest.raises(ArchiveError, match="has no method 'prefill'; the methods are"):
        fe.load(pickled, method="prefill", trust=True)
