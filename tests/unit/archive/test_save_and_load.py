"""Programs to archives and back, with and without weights."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive import save
from fakexport.archive.loading import load_archive
from fakexport.archive.manifest import Manifest
from fakexport.archive.manifest_json import write_described
from fakexport.archive.stored_tensor import CONSTANTS_CONFIG, WEIGHTS_CONFIG, apart
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import DataReadError, constant_value
from fakexport.exporting.program import WeightsNotBoundError
from fakexport.files.container import ArchiveError
from tests.known_facts import with_facts
from tests.unit.archive.described import described_otherwise, records_of


class Tied(nn.Module):
    """Tied weights, a persistent and a non-persistent buffer, a plain attribute and a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.arange(4.0), persistent=False)
        self.shift = torch.tensor([3.0, 2.0, 1.0, 0.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(x)) * self.scale + self.shift
        return self.head(hidden + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device))


def factory() -> nn.Module:
    return Tied().eval()


def exported(topology: str) -> torch.export.ExportedProgram:
    ids = torch.zeros(5, dtype=torch.long)
    return fe.export(factory, (ids,), target=topology, dynamic_shapes=["x.0=2..64"])


@pytest.fixture(params=["cpu", "H100"])
def topology(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_weightless_program_comes_back_the_same(topology: str, tmp_path: Path) -> None:
    program = exported(topology)
    save(with_facts(program, topology=topology), tmp_path / "model.pt2")

    loaded = load_archive(tmp_path / "model.pt2")

    assert fe.diff(program, loaded.program).is_identical
    assert loaded.only.topology == {"cpu": "cpu", "H100": "H100-80GB"}[topology]
    assert list(loaded.program.state_dict) == list(program.state_dict)
    assert all(is_fake(tensor) for tensor in loaded.program.state_dict.values())
    assert loaded.program.state_dict["head.weight"] is loaded.program.state_dict["embed.weight"]
    for name, constant in program.constants.items():
        assert torch.equal(constant_value(loaded.program.constants[name]), constant_value(constant)), name


def test_the_same_program_gives_the_same_bytes(topology: str, tmp_path: Path) -> None:
    for name in ("one", "other"):
        save(exported(topology), tmp_path / name)
    save(fe.load(tmp_path / "one"), tmp_path / "again")

    one, other, again = ((tmp_path / name).read_bytes() for name in ("one", "other", "again"))
    assert one == other == again


def test_the_manifest_says_what_is_known_without_the_folders_of_the_machine(tmp_path: Path) -> None:
    facts = {
        "source": f"{tmp_path}/my models/model.py:factory",
        "topology": "cpu+2xa100",
        "device_map": {"": "cuda:0"},
        "dtype": "bfloat16",
        "dynamic_shapes": "x.0=2..64",
        "skipped_checks": [f"{tmp_path}/notes.txt was not read", "'a100' does not name a model"],
        "versions": {"transformers": "5.23.0"},
    }
    for name in ("one", "other"):
        save(with_facts(exported("H100"), **facts), tmp_path / name, root=tmp_path)

    manifest = load_archive(tmp_path / "one").only
    assert manifest.source == "my models/model.py:factory"
    assert (manifest.topology, manifest.profiles[0]) == ("cpu+2xA100-80GB", "cpu")
    assert manifest.profiles[1:] == ("A100-80GB", "A100-80GB")
    assert manifest.device_map == {"": "cuda:0"}
    assert (manifest.dtype, manifest.dynamic_shapes) == ("bfloat16", "x.0=2..64")
    assert manifest.skipped_checks == ("notes.txt was not read", "'a100' does not name a model")
    assert manifest.versions.keys() == {"fakexport", "torch", "transformers"}
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_a_topology_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Q100"):
        save(with_facts(exported("cpu"), topology="8xQ100"), tmp_path / "model.pt2")


def test_nothing_of_this_machine_is_in_the_file(tmp_path: Path) -> None:
    save(exported("cpu"), tmp_path / "model.pt2")

    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        text = b"".join(archive.read(name) for name in archive.namelist())
    assert str(Path(__file__).parent).encode() not in text
    assert str(Path(torch.__file__).parent).encode() not in text
    assert b"pickle" not in text.replace(b'"use_pickle":false', b"")


def test_stock_torch_refuses_it_loudly(tmp_path: Path) -> None:
    save(exported("cpu"), tmp_path / "model.pt2")

    with pytest.raises(AssertionError, match="not found in PT2 archive"):
        torch.export.load(tmp_path / "model.pt2")


def test_bound_it_gives_what_eager_gives_here_and_in_stock_torch(topology: str, tmp_path: Path) -> None:
    eager = factory()
    save(exported(topology), tmp_path / "model.pt2")
    bound = fe.bind(
        tmp_path / "model.pt2", dict(eager.state_dict()), devices=None if topology == "cpu" else "cpu"
    )
    save(bound, tmp_path / "bound.pt2")

    for program in (bound, fe.load(tmp_path / "bound.pt2"), torch.export.load(tmp_path / "bound.pt2")):
        for ids in (torch.tensor([1, 2, 3]), torch.arange(9)):
            assert torch.equal(program.module()(ids), eager(ids))
        assert program.state_dict["head.weight"].data_ptr() == program.state_dict["embed.weight"].data_ptr()


def test_half_of_the_weights_is_not_saved(tmp_path: Path) -> None:
    program = exported("cpu")
    program.state_dict["norm.bias"] = torch.zeros(4)

    with pytest.raises(ValueError, match=r"some weights are real, but embed\.weight is fake"):
        save(program, tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


class TwoNames(nn.Module):
    """Two attributes are the same tensor, which is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.arange(4.0)
        self.last = self.total

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.last + self.total


@pytest.mark.parametrize("export", [fe.export, lambda make, args: torch.export.export(make(), args)])
def test_a_constant_with_two_names_is_opened_again(export: Any, tmp_path: Path) -> None:
    save(export(TwoNames, (torch.zeros(4),)), tmp_path / "model.pt2")

    x, program = torch.randn(4), fe.bind(fe.load(tmp_path / "model.pt2"), {})

    assert torch.equal(program.module()(x), TwoNames()(x))


def test_a_name_that_a_program_does_not_read_is_no_difference(tmp_path: Path) -> None:
    program = fe.export(TwoNames, (torch.zeros(4),))
    save(program, tmp_path / "model.pt2")

    assert fe.diff(program, fe.load(tmp_path / "model.pt2")).is_identical


class Drawn(nn.Module):
    """A constant that nobody can know."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.randn(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.noise


def test_an_unbound_constant_is_named_and_refuses(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        with pytest.warns(UserWarning, match="FE602"):
            program = fe.export(Drawn, (torch.zeros(4),))
    save(program, tmp_path / "model.pt2")

    loaded = load_archive(tmp_path / "model.pt2")

    assert [constant.name for constant in loaded.only.unbound_constants] == ["noise"]
    with pytest.raises(DataReadError):
        constant_value(loaded.program.constants["noise"])
    with pytest.raises(WeightsNotBoundError, match="noise"):
        loaded.program.module()
    bound = fe.bind(loaded.program, {}, constants={"noise": torch.ones(4)})
    assert bound.module()(torch.zeros(4)).tolist() == [1.0] * 4


def rewritten(path: Path, change: dict[str, object]) -> Path:
    """The archive of one bound `nn.Linear(2, 1, bias=False)`, its weight described with these changes."""
    program = fe.export(lambda: nn.Linear(2, 1, bias=False), (torch.zeros(1, 2),))
    manifest = save(fe.bind(program, {"weight": torch.tensor([[5.0, 6.0]])}), path)
    kept = records_of(path)
    (weight,) = manifest.tensors
    assert weight.location is not None
    location = replace(weight.location, offset=change.pop("offset", 0))
    kept[location.file] = bytes(location.offset) + kept[location.file]
    moved = replace(weight, location=location, **change)
    write_described(path, kept, described_otherwise(manifest, tensors=(moved,)))
    return path


def test_a_weight_is_read_where_the_manifest_says(tmp_path: Path) -> None:
    program = fe.load(rewritten(tmp_path / "moved.pt2", {"offset": 8}))

    assert program.state_dict["weight"].tolist() == [[5.0, 6.0]]


def test_a_bound_archive_of_an_absent_device_is_refused_in_one_line(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "far.pt2", {"device": "cuda:0"})

    with pytest.raises(ArchiveError, match=r"weight: is on cuda:0, which is not on this machine$"):
        fe.load(path)


def with_manifest(path: Path, manifest: Manifest) -> Path:
    """The same archive under another manifest, and a config of its weights that fits that."""
    kept = records_of(path)
    place = apart(WEIGHTS_CONFIG)
    document = json.loads(kept[place])
    names = {name for tensor in manifest.tensors for name in (tensor.name, *tensor.aliases)}
    one = next(iter(document["config"].values()))
    document["config"] = {name: document["config"].get(name, one) for name in sorted(names)}
    kept[place] = json.dumps(document).encode()
    write_described(path, kept, replace(manifest, records=()))
    return path


@pytest.mark.parametrize("change", [{"device": "nowhere:0"}, {"dtype": "int64", "requires_grad": True}])
def test_an_unused_weight_that_torch_cannot_make_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    manifest = save(exported("cpu"), tmp_path / "model.pt2")
    unused = replace(manifest.tensors[0], name="unused", aliases=(), **change)
    path = with_manifest(
        tmp_path / "model.pt2", described_otherwise(manifest, tensors=(*manifest.tensors, unused))
    )

    with pytest.raises(ArchiveError, match="unused: torch cannot create such a tensor"):
        fe.load(path)


def test_an_unused_weight_is_a_fake_like_the_others(tmp_path: Path) -> None:
    manifest = save(exported("H100"), tmp_path / "model.pt2")
    (first, *_) = (tensor for tensor in manifest.tensors if tensor.is_parameter)
    unused = replace(first, name="unused", aliases=())

    path = with_manifest(
        tmp_path / "model.pt2", described_otherwise(manifest, tensors=(*manifest.tensors, unused))
    )

    weight = fe.load(path).state_dict["unused"]
    assert isinstance(weight, nn.Parameter)
    assert fe.is_fake(weight)
    assert (str(weight.device), tuple(weight.shape), weight.requires_grad) == ("cuda:0", first.shape, True)


def with_config(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The weight-less archive of `Tied`, with another config of its constants and a manifest that fits it."""
    manifest = save(exported("cpu"), path)
    kept = records_of(path)
    document = json.loads(kept[CONSTANTS_CONFIG])
    change(document["config"])
    kept[CONSTANTS_CONFIG] = json.dumps(document).encode()
    write_described(path, kept, manifest)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["scale"]["tensor_meta"].update(strides=[]), "scale.tensor_meta: 1 sizes but 0 strides"),
        (
            lambda c: c["scale"]["tensor_meta"].update(sizes=[{"as_int": 2}]),
            "tensor_.: has a different shape",
        ),
        (lambda c: c["scale"]["tensor_meta"].update(strides=[{"as_int": 9}]), "has 16 bytes, but its tensor"),
        (
            lambda c: c["scale"].pop("path_name"),
            "constants_config.json: scale.path_name: this field is missing",
        ),
        (lambda c: c["scale"].update(path_name="../weights/x"), "data/constants/../weights/x: is missing"),
        (lambda c: c.pop("scale"), "list different constants"),
    ],
)
def test_a_bent_config_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    path = with_config(tmp_path / "bent.pt2", change)

    with pytest.raises(ArchiveError, match=message) as caught:
        fe.load(path)
    assert "\n" not in str(caught.value)
