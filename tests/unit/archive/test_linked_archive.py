"""Archives whose weights stay in a checkpoint beside them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fakexport as fe
from fakexport.archive import save
from fakexport.archive.linked_files import _LinkedFile, linked_tensors
from fakexport.archive.loading import load_archive
from fakexport.archive.manifest import ALONE, Manifest, MethodManifest
from fakexport.archive.manifest_json import write_described
from fakexport.archive.weights import open_checkpoint
from fakexport.files.container import ArchiveError
from fakexport.files.container.reader import Limits
from tests.unit.archive.described import manifest_of, records_of


class Tied(nn.Module):
    """Tied weights, buffers, and two layers of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.first, self.later = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.later(self.first(self.norm(self.embed(x)))))


IDS = torch.arange(9)
FILE = "checkpoint/model.safetensors"


@pytest.fixture
def eager() -> Tied:
    torch.manual_seed(0)
    return Tied().eval()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every test has a copy of."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Tied().eval()
    return write_linked(model, tmp_path_factory.mktemp("linked") / "models").parent


@pytest.fixture
def linked(written: Path, tmp_path: Path) -> Path:
    """`models/linked.pt2`, and the checkpoint that it is linked to."""
    return shutil.copytree(written, tmp_path / "models") / "linked.pt2"


def write_linked(eager: Tied, folder: Path, dtypes: dict[str, torch.dtype] | None = None) -> Path:
    (folder / "checkpoint").mkdir(parents=True)
    state = {name: t for name, t in eager.state_dict().items() if name != "head.weight"}
    state |= {name: state[name].to(dtype) for name, dtype in (dtypes or {}).items()}
    save_file(state, folder / FILE)
    program = fe.export(
        lambda: Tied().eval(), (torch.zeros(5, dtype=torch.long),), dynamic_shapes=["x.0=2..64"]
    )
    checkpoint = open_checkpoint(folder / "checkpoint")
    bound = fe.bind(program, checkpoint, dtype=torch.float32 if dtypes else None)
    save(bound, folder / "linked.pt2", link=checkpoint)
    return folder / "linked.pt2"


def refusal(path: Path, **options: bool) -> str:
    with pytest.raises(ArchiveError) as caught:
        fe.load(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("check_weights", [True, False])
def test_it_computes_what_eager_does(check_weights: bool, eager: Tied, linked: Path) -> None:
    loaded = load_archive(linked, check_weights=check_weights)

    assert torch.equal(loaded.program.module()(IDS), eager(IDS))
    state = loaded.program.state_dict
    assert state["head.weight"] is state["embed.weight"]
    assert loaded.only.weights == "linked"
    places = [tensor.location for tensor in loaded.only.tensors]
    assert all(place is not None and place.file == FILE for place in places)


def test_the_folder_may_move(eager: Tied, linked: Path, tmp_path: Path) -> None:
    linked.parent.rename(tmp_path / "elsewhere")

    program = fe.load(tmp_path / "elsewhere" / "linked.pt2")

    assert torch.equal(program.module()(IDS), eager(IDS))


def test_the_same_weights_give_the_same_bytes(eager: Tied, linked: Path, tmp_path: Path) -> None:
    other = write_linked(eager, tmp_path / "other")

    assert linked.read_bytes() == other.read_bytes()


def test_a_converted_weight_is_inside(eager: Tied, tmp_path: Path) -> None:
    path = write_linked(
        eager, tmp_path / "models", {"first.weight": torch.float64, "norm.bias": torch.float64}
    )

    loaded = load_archive(path)

    assert torch.equal(loaded.program.module()(IDS), eager(IDS))
    inside = {t.name for t in loaded.only.tensors if t.location and not t.location.is_link}
    assert inside == {"first.weight", "norm.bias"}


def test_saved_again_it_has_its_weights(eager: Tied, linked: Path) -> None:
    save(fe.load(linked), linked.parent / "whole.pt2")
    shutil.rmtree(linked.parent / "checkpoint")

    for program in (fe.load(linked.parent / "whole.pt2"), torch.export.load(linked.parent / "whole.pt2")):
        assert torch.equal(program.module()(IDS), eager(IDS))


def test_the_manifest_is_read_without_the_checkpoint(linked: Path) -> None:
    shutil.rmtree(linked.parent / "checkpoint")

    assert manifest_of(linked).only.weights == "linked"
    assert (
        refusal(linked) == f"{FILE}: this file with linked weights cannot be read: No such file or directory"
    )


def test_every_flipped_bit_of_a_weight_is_noticed(linked: Path) -> None:
    content = (linked.parent / FILE).read_bytes()
    places = [tensor.location for tensor in manifest_of(linked).tensors if tensor.location]
    for place in places:
        for byte in {place.offset, place.offset + place.length // 2, place.offset + place.length - 1}:
            damaged = bytearray(content)
            damaged[byte] ^= 1
            (linked.parent / FILE).write_bytes(damaged)

            assert "its sha256 differs" in refusal(linked)


def test_unread_weights_may_have_changed_and_their_description_may_not(eager: Tied, linked: Path) -> None:
    first = eager.first.weight.detach().clone()
    state = {name: t for name, t in eager.state_dict().items() if name != "head.weight"}
    save_file({**state, "first.weight": first + 1}, linked.parent / FILE)
    program = fe.load(linked, check_weights=False)
    assert torch.equal(program.state_dict["first.weight"], first + 1)

    text = (linked.parent / FILE).read_bytes()
    for old, new in (("first", "other"), ("later", "first"), ("other", "later")):  # They change places.
        text = text.replace(f'"{old}.weight"'.encode(), f'"{new}.weight"'.encode())
    (linked.parent / FILE).write_bytes(text)
    assert "at the recorded offset: not the linked file" in refusal(linked, check_weights=False)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def symbolic_link(file: Path) -> None:
    outside = file.parents[2] / "outside.safetensors"
    file.rename(outside)
    file.symlink_to(outside)


def link_of_its_folder(file: Path) -> None:
    file.parent.rename(file.parents[2] / "outside")
    file.parent.symlink_to(file.parents[2] / "outside")


@pytest.mark.parametrize("check_weights", [True, False])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncated, "its data ends at"),
        (emptied, "too few for a header"),
        (pipe, "is a named pipe, not a regular file"),
        (folder, "is a directory, not a regular file"),
        (symbolic_link, "is a symbolic link, not a regular file"),
        (link_of_its_folder, "is a symbolic link or is reached through one"),
    ],
)
def test_a_spoiled_file_is_refused_in_one_line(
    spoil: Callable[[Path], None], message: str, check_weights: bool, linked: Path
) -> None:
    spoil(linked.parent / FILE)

    found = refusal(linked, check_weights=check_weights)

    assert found.startswith(f"{FILE}: ")
    assert message in found


def test_what_is_loaded_is_what_is_hashed_also_if_the_file_is_exchanged_in_between(
    linked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = linked.parent / FILE
    good = file.rename(file.with_name("good"))
    save_file({name: tensor + 1 for name, tensor in load_file(good).items()}, file)

    def check_after_exchange(linked_file: object, *arguments: object) -> None:
        if good.exists():
            good.replace(file)
        check(linked_file, *arguments)

    check = _LinkedFile.check
    monkeypatch.setattr(_LinkedFile, "check", check_after_exchange)

    assert "its sha256 differs" in refusal(linked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": 1}, "at the recorded offset"),
        ({"offset": -8}, "outside the range"),
        ({"length": 2**40}, "at the recorded offset"),
        ({"file": "../models/checkpoint/model.safetensors"}, "contains the path component"),
        ({"file": "/etc/passwd"}, "absolute path"),
        ({"file": "linked.pt2"}, "is not a valid safetensors file"),
        ({"file": "checkpoint/other.safetensors"}, "No such file"),
        ({"sha256": "0" * 64}, "its sha256 differs"),
        ({"sha256": None}, "is not a record"),
    ],
)
def test_a_bent_link_is_refused_in_one_line(change: dict[str, object], message: str, linked: Path) -> None:
    bend(linked, change)

    assert message in refusal(linked)


def bend(path: Path, change: dict[str, object]) -> None:
    """Changes where the archive says that its first weight lies, with a manifest that nobody has checked."""
    manifest = manifest_of(path)
    records = records_of(path)
    first, *others = manifest.tensors
    assert first.location is not None
    bent = replace(first, location=replace(first.location, **change))
    about = _UncheckedMethod(**{**vars(manifest.only), "tensors": (bent, *others)})
    write_described(path, records, _Unchecked(methods={ALONE: about}))


class _UncheckedMethod(MethodManifest):
    def __post_init__(self) -> None:
        pass


class _Unchecked(Manifest):
    def __post_init__(self) -> None:
        pass


def test_headers_of_linked_files_are_limited_together(linked: Path) -> None:
    entries = manifest_of(linked).tensors

    with pytest.raises(
        ArchiveError, match="the headers of the linked files, including this one, exceed 100 bytes"
    ):
        linked_tensors(str(linked), entries, limits=Limits(json_bytes=100), check_weights=False)


def test_a_checkpoint_outside_of_the_folder_cannot_be_linked(eager: Tied, linked: Path) -> None:
    checkpoint = open_checkpoint(linked.parent / "checkpoint")
    bound = fe.bind(fe.load(linked), checkpoint)
    (linked.parent / "below").mkdir()

    with pytest.raises(ValueError, match="linked weights must be in or below the folder of") as caught:
        save(bound, linked.parent / "below" / "linked.pt2", link=checkpoint)
    assert "\n" not in str(caught.value)
    assert not (linked.parent / "below" / "linked.pt2").exists()


def test_a_checkpoint_behind_symbolic_links_is_named_by_its_own_place(eager: Tied, linked: Path) -> None:
    snapshot = linked.parent / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(linked.parent / FILE)
    checkpoint = open_checkpoint(snapshot)

    save(fe.bind(fe.load(linked), checkpoint), linked.parent / "again.pt2", link=checkpoint)

    assert (linked.parent / "again.pt2").read_bytes() == linked.read_bytes()


def test_what_lies_in_no_file_cannot_be_linked(eager: Tied, linked: Path) -> None:
    bound = fe.load(linked)
    another = open_checkpoint(linked.parent / "checkpoint")
    in_memory = open_checkpoint(eager.state_dict())

    for checkpoint in (another, in_memory):
        with pytest.raises(ValueError, match="no weight can be linked"):
            save(bound, linked.parent / "other.pt2", link=checkpoint)


def test_a_weight_that_was_written_to_is_not_taken_for_the_one_in_the_file(linked: Path) -> None:
    checkpoint = open_checkpoint(linked.parent / "checkpoint")
    bound = fe.bind(fe.load(linked), checkpoint)
    with torch.no_grad():
        bound.state_dict["first.bias"].add_(1)

    save(bound, linked, link=checkpoint)

    assert "has different data for `first.bias`" in refusal(linked)
