"""A compiled package computes what its program does, and is refused before it could do anything else."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.package import package_aoti
from torch.export import ExportedProgram

import fakexport as fe
from fakexport._torch.operators.inductor import AotiPackage
from fakexport.archive.weights import BindError, WeightsWarning
from fakexport.deploy import DeployError, InputMismatchError, artifact_kind, run
from fakexport.deploy.aoti import compile_aoti, open_aoti
from fakexport.deploy.aoti.metadata import PackageMetadata
from fakexport.deploy.aoti.package import PackageCache, cache_key, read_constants, read_metadata
from fakexport.deploy.artifact import CompiledFile
from fakexport.deploy.opening import open_artifact
from fakexport.deploy.weights_file import OWNER, file_beside
from fakexport.exporting.program import WeightsNotBoundError
from fakexport.files.container import ArchiveError
from fakexport.files.container.reader import read_container
from fakexport.files.container.writer import write_container

safetensors = pytest.importorskip("safetensors.torch")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]

TOLERANCE = {"rtol": 1e-6, "atol": 2e-5}


class Everything(nn.Module):
    """Tied weights, an unused one, scalars, dtypes, buffers of both kinds, a written one, literals."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 8)
        self.third.weight = self.first.weight
        self.norm, self.unused = nn.LayerNorm(4), nn.Linear(2, 2, bias=False)
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.shift = nn.Parameter(torch.randn(1))
        self.rough = nn.Parameter(torch.randn(4, dtype=torch.bfloat16))
        self.register_buffer("table", torch.randint(0, 9, (4,)))
        self.register_buffer("offsets", torch.arange(16.0), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> dict[str, object]:
        self.calls.add_(1)
        hidden = self.norm(self.second(self.first(x).relu())) * (self.scale * 2) + self.offsets[:4]
        hidden = hidden + self.third(x).sum() + self.shift.expand(4) * 3 + self.rough + self.table[index]
        return {"hidden": hidden + torch.tensor([1.0, 2.0, 3.0, 4.0]), "rank": 3, "calls": self.calls + 0}


def module() -> Everything:
    torch.manual_seed(0)
    made = Everything()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return made


def state() -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module().state_dict().items()}


def inputs(batch: int = 5) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(batch, 4), "index": torch.tensor([3, 0, 1, 2])}


def assert_computes_as_the_program(
    opened: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], bound: ExportedProgram
) -> None:
    for batch in (5, 1, 0, 64):
        given = inputs(batch)
        got, wanted = opened(given), run(bound, given)
        assert got.keys() == wanted.keys() == {"hidden", "calls"}
        assert torch.equal(got["calls"], wanted["calls"])
        assert torch.allclose(got["hidden"], wanted["hidden"], **TOLERANCE)


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    batch = {0: torch.export.Dim("batch", max=64)}
    example = (torch.zeros(3, 4), torch.zeros(4, dtype=torch.int64))
    return fe.export(Everything, example, dynamic_shapes=(batch, None))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("aoti")


@pytest.fixture(scope="module")
def cache(folder: Path) -> Path:
    return folder / "cache"


@pytest.fixture(scope="module")
def unbound(program: ExportedProgram, folder: Path, cache: Path) -> CompiledFile:
    """The one compilation that most tests share."""
    return compile_aoti(program, folder / "unbound.aoti.pt2", cache=cache)


@pytest.fixture(scope="module")
def beside(program: ExportedProgram, folder: Path, cache: Path, unbound: CompiledFile) -> CompiledFile:
    bound = fe.bind(program, state())
    return compile_aoti(bound, folder / "beside.aoti.pt2", weights="beside", cache=cache)


@pytest.fixture
def copied(beside: CompiledFile, tmp_path: Path) -> Path:
    """A package with its weights, to spoil."""
    for file in beside.files:
        shutil.copy(file, tmp_path)
    return tmp_path / beside.path.name


def state_once() -> dict[str, torch.Tensor]:
    """As transformers saves it: a tied weight under one of its names."""
    return {name: tensor for name, tensor in state().items() if name != "third.weight"}


def test_weights_are_bound_from_a_checkpoint(program: ExportedProgram, unbound: CompiledFile) -> None:
    given = state()
    opened = open_aoti(unbound.path, checkpoint=given)

    assert unbound.files == (unbound.path,)
    assert not unbound.is_cached
    assert unbound.notes == (
        "unbound.aoti.pt2 has no weights: `fakexport run unbound.aoti.pt2 CHECKPOINT` binds them",
    )
    assert_computes_as_the_program(opened, fe.bind(program, state()))
    assert given["calls"] == 0  # The caller's tensors are not written into.
    with pytest.raises(DeployError, match=r"has no weights: pass a checkpoint, or put unbound.aoti.safetens"):
        open_aoti(unbound.path)
    with pytest.raises(BindError, match=r"1 of 13 weights do not fit: FE702"):
        open_aoti(unbound.path, checkpoint={**given, "second.weight": torch.zeros(8, 4)})


def test_weights_beside_are_found_and_checked(
    program: ExportedProgram, unbound: CompiledFile, beside: CompiledFile
) -> None:
    names = set(safetensors.load_file(beside.files[1]))

    assert beside.is_cached
    assert beside.path.read_bytes() == unbound.path.read_bytes()
    assert beside.files == (beside.path, beside.path.with_suffix(".safetensors"))
    assert len(names & {"first.weight", "third.weight"}) == 1
    assert names == set(AotiPackage(beside.path).constant_names)  # torch's own loader crashes without one.
    assert artifact_kind(beside.path) == "aoti"
    with pytest.raises(DeployError, match="contains native code that runs on load; pass --trust"):
        open_artifact(beside.path, "aoti")
    for checkpoint in (None, beside.files[1]):
        opened = open_artifact(beside.path, "aoti", trust=True, checkpoint=checkpoint)
        assert_computes_as_the_program(opened, fe.bind(program, state()))
    with pytest.raises(InputMismatchError, match=r"`x` has size 65 in dimension 0.* at most 64"):
        opened(inputs(65))
    given = inputs()
    turned = {"x": given["x"].t().contiguous().t(), "index": given["index"].repeat_interleave(2)[::2]}
    assert torch.equal(opened(turned)["hidden"], opened(given)["hidden"])


def test_the_package_has_the_constants_and_wants_only_weights(unbound: CompiledFile) -> None:
    with read_container(unbound.path, trust=True) as opened:
        metadata, constants = read_metadata(opened), read_constants(opened)

    wanted = {name for tensor in metadata.tensors for name in (tensor.name, *tensor.aliases)}
    assert wanted == state().keys() - {"unused.weight"}
    assert set(metadata.unread) == {"unused.weight", *constants}
    assert "offsets" in constants
    assert torch.equal(constants["offsets"], torch.arange(16.0))


@pytest.mark.parametrize("tied", [("first.weight",), ("third.weight",), ("first.weight", "third.weight")])
def test_a_checkpoint_beside_needs_one_name_of_a_tied_weight_and_no_constants(
    copied: Path, program: ExportedProgram, tied: tuple[str, ...]
) -> None:
    """As for `bind`: an old checkpoint that has a non-persistent buffer does not change it."""
    dropped = {"first.weight", "third.weight", "unused.weight"} - set(tied)
    given = {name: tensor for name, tensor in state().items() if name not in dropped}
    safetensors.save_file({**given, "offsets": torch.zeros(16)}, file_beside(copied))

    assert_computes_as_the_program(open_aoti(copied), fe.bind(program, state()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"second.bias": None}, r"1 of 12 weights do not fit: FE701"),
        ({"second.bias": torch.zeros(5)}, r"1 of 12 weights do not fit: FE702"),
        ({"second.bias": torch.zeros(4).double()}, r"1 of 12 weights do not fit: FE703"),
        (
            {"third.weight": torch.zeros(8, 4)},
            r"1 of 12 weights do not fit: FE705 \(1\): third.weight, first.weight",
        ),
    ],
)
def test_weights_beside_that_do_not_fit_are_named(copied: Path, changes: Any, message: str) -> None:
    tensors = {name: tensor for name, tensor in {**state(), **changes}.items() if tensor is not None}
    safetensors.save_file(tensors, file_beside(copied))

    with pytest.raises(BindError, match=message):
        open_aoti(copied)


def test_entries_that_the_program_does_not_know_are_told_of(copied: Path) -> None:
    """`unused.weight` is one of its names."""
    more = {"older": torch.zeros(1), "old": torch.zeros(1)}
    safetensors.save_file({**state_once(), **more}, file_beside(copied))

    with pytest.warns(WeightsWarning, match=r"FE704: .* has 2 entries that .*: old, older$"):
        open_aoti(copied)


def test_weights_of_another_compilation_are_not_taken_for_those_of_the_package(copied: Path) -> None:
    """An interruption between the two files leaves an old package, and new weights that look the same."""
    beside = file_beside(copied)
    safetensors.save_file(safetensors.load_file(beside), beside, metadata={OWNER: "ab" * 32})

    for checkpoint in (None, beside):
        with pytest.raises(DeployError, match=r"was written for a different beside\.aoti\.pt2"):
            open_aoti(copied, checkpoint=checkpoint)


def test_weights_can_be_inside(program: ExportedProgram, tmp_path: Path) -> None:
    bound = fe.bind(program, state())

    made = compile_aoti(bound, tmp_path / "inside.aoti.pt2")

    assert made.files == (made.path,)
    opened = open_aoti(made.path)
    assert_computes_as_the_program(opened, fe.bind(program, state()))
    with pytest.raises(DeployError, match="contains its weights and does not accept a checkpoint"):
        open_aoti(made.path, checkpoint=state())


@pytest.mark.usefixtures("unbound")
def test_a_checkpoint_beside_the_output_is_not_overwritten(
    program: ExportedProgram, cache: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "m.safetensors"
    safetensors.save_file({"other": torch.zeros(2)}, checkpoint)
    before = checkpoint.read_bytes()

    with pytest.raises(DeployError, match=r"m\.safetensors already exists with different content"):
        compile_aoti(fe.bind(program, state()), tmp_path / "m.pt2", weights="beside", cache=cache)

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"m.safetensors": before}


def test_torch_itself_opens_the_package(beside: CompiledFile, program: ExportedProgram) -> None:
    loaded = torch._inductor.aoti_load_package(str(beside.path))
    held = safetensors.load_file(beside.files[1])
    loaded.load_constants(held, check_full_update=True)

    found = PackageMetadata.from_text(loaded.get_metadata()["fakexport"])
    given = inputs()
    got = loaded(*given.values())

    assert held.keys() == set(loaded.get_constant_fqns())
    assert {tensor.name for tensor in found.tensors} == held.keys() - set(found.unread)
    wanted = run(fe.bind(program, state()), given)
    assert torch.allclose(got["hidden"], wanted["hidden"], **TOLERANCE)


@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.9])
def test_a_damaged_package_is_refused(copied: Path, part: float) -> None:
    content = bytearray(copied.read_bytes())
    content[int(len(content) * part)] ^= 0x10

    for damaged in (content, content[:-500]):
        copied.write_bytes(damaged)
        with pytest.raises(ArchiveError):
            open_aoti(copied)


def test_a_package_of_somebody_else_is_refused(copied: Path) -> None:
    other, files = copied.with_name("other.pt2"), []
    with zipfile.ZipFile(copied) as ours:
        for name in ours.namelist():
            if "/data/aotinductor/" in name:
                files.append(copied.with_name(Path(name).name))
                files[-1].write_bytes(b"{}" if name.endswith("_metadata.json") else ours.read(name))
    package_aoti(str(other), [str(file) for file in files])

    with pytest.raises(
        ArchiveError, match="was not compiled by fakexport, so its inputs and weights are unknown"
    ):
        open_aoti(other)


def test_a_program_archive_is_no_package(program: ExportedProgram, tmp_path: Path) -> None:
    fe.save(program, tmp_path / "program.pt2")

    with pytest.raises(ArchiveError, match="is not an AOTInductor package"):
        open_aoti(tmp_path / "program.pt2")


def with_metadata(package: Path, change: dict[str, object]) -> None:
    """Rewrites a package so that it says something else of itself, and is whole."""
    with read_container(package, trust=True) as opened:
        metadata = replace(read_metadata(opened), **change)
        records = {name: opened.record(name) for name in opened.names if "sha256" not in name}
    for name in records:
        if name.endswith("_metadata.json"):
            records[name] = json.dumps(
                {**json.loads(records[name]), "fakexport": metadata.to_text()}
            ).encode()
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in records.items()}
    write_container(package, {**records, "data/fakexport/sha256.json": json.dumps(digests).encode()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"versions": {"torch": "2.11.0"}},
            r"compiled with torch 2.11.0, but this is torch .*: compile it again",
        ),
        ({"machine": "vax"}, "compiled for vax, but this machine is"),
        ({"instructions": ("avx2048",)}, "for a processor with avx2048, which this processor lacks"),
        ({"device": "cuda"}, "compiled for cuda, which is not available on this machine"),
        (
            {"libraries_for": ("acme.scale.default",)},
            "acme.scale.default is not registered: import the operator library `acme` first",
        ),
        ({"tensors": ()}, "the compiled code expects different weights than its metadata lists"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore::fakexport.archive.weights.WeightsWarning"
)  # Of tensors that it does not name.
def test_a_package_for_another_machine_or_library_is_refused(
    copied: Path, change: dict[str, object], message: str
) -> None:
    if "device" in change and torch.cuda.is_available():
        pytest.skip("there is such a device here")
    with_metadata(copied, change)

    with pytest.raises((DeployError, ArchiveError), match=message):
        open_aoti(copied)


@pytest.mark.usefixtures("unbound")
def test_an_entry_of_the_cache_is_used_as_long_as_it_is_whole(cache: Path, tmp_path: Path) -> None:
    (entry,) = cache.iterdir()
    key = entry.name.removesuffix(".aoti.pt2")
    content = bytearray(entry.read_bytes())

    def taken(folder: Path) -> bytes | None:
        package = PackageCache(folder, key).taken(Path(tempfile.mkdtemp(dir=tmp_path)))
        return None if package is None else package.read_bytes()

    other = tmp_path / "other"
    other.mkdir()

    assert taken(cache) == entry.read_bytes()
    assert [stat.S_IMODE(place.stat().st_mode) for place in (cache, entry)] == [0o700, 0o600]

    content[len(content) // 2] ^= 1
    (other / entry.name).write_bytes(content)
    assert taken(other) is None
    (other / entry.name).write_bytes(content[:100])
    assert taken(other) is None
    assert taken(tmp_path / "nowhere") is None
    (other / entry.name).write_bytes(entry.read_bytes())
    with_metadata(other / entry.name, {"place": "elsewhere"})  # as another version of fakexport may say
    assert taken(other) is None


@pytest.mark.usefixtures("unbound")
def test_an_entry_of_the_cache_that_others_can_write_to_is_refused(cache: Path, tmp_path: Path) -> None:
    (entry,) = cache.iterdir()
    planted = tmp_path / "other" / entry.name
    planted.parent.mkdir(mode=0o700)
    shutil.copyfile(entry, planted)
    planted.chmod(0o666)

    with pytest.raises(DeployError, match=r"is writable by everyone .* delete the file"):
        PackageCache(planted.parent, entry.name.removesuffix(".aoti.pt2")).taken(tmp_path)

    assert list(tmp_path.iterdir()) == [planted.parent]


def test_the_key_of_the_cache_tells_programs_values_and_machines_apart() -> None:
    values = {"w": torch.tensor([1.0, 2.0])}

    keys = [
        cache_key(b"a", values, {"machine": "x"}),
        cache_key(b"b", values, {"machine": "x"}),
        cache_key(b"a", {}, {"machine": "x"}),
        cache_key(b"a", {"w": torch.tensor([1.0, 3.0])}, {"machine": "x"}),
        cache_key(b"a", {"v": torch.tensor([1.0, 2.0])}, {"machine": "x"}),
        cache_key(b"a", values, {"machine": "y"}),
    ]

    assert len(set(keys)) == len(keys)
    assert keys[0] == cache_key(b"a", {"w": torch.tensor([1.0, 2.0])}, {"machine": "x"})


def test_weights_that_are_not_there_cannot_be_inside(program: ExportedProgram, tmp_path: Path) -> None:
    with pytest.raises(WeightsNotBoundError):
        compile_aoti(program, tmp_path / "m.pt2", weights="inside")
    with pytest.raises(ValueError, match=r"must end in \.pt2"):
        compile_aoti(program, tmp_path / "m.so")
    assert not list(tmp_path.iterdir())
