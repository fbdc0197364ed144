"""What `diff` tells of two archives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

import fakexport as fe
from fakexport.archive import diff_archives, load, loading, save
from fakexport.exporting.program import summarise
from fakexport.files.container import ArchiveError
from fakexport.report import render_archive_difference
from tests.known_facts import with_facts
from tests.unit.archive.programs import branches, every_kind, flexible
from tests.unit.archive.test_save_and_load import exported, factory


def linear(out: int = 2, *, bias: bool = True, dtype: torch.dtype = torch.float32) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(4, out, bias=bias, dtype=dtype)


class Sends(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(x, "sum", "0"))


def archive(path: Path, make: Callable[[], nn.Module], *, is_bound: bool = False) -> Path:
    dtype = next(make().parameters()).dtype
    program = fe.export(make, (torch.zeros(3, 4, dtype=dtype),))
    save(fe.bind(program, dict(make().state_dict())) if is_bound else program, path)
    return path


def test_the_same_archive_is_the_same(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt2", linear())

    found = diff_archives(path, path)

    assert found.is_same
    assert (found.weights, found.facts, found.notes) == ((), (), ())
    assert render_archive_difference(found).endswith("identical\n\nsame program, same weights\n")


@pytest.mark.parametrize("make", [every_kind, branches, flexible], ids=lambda make: make.__name__)
def test_equal_records_are_told_as_the_decoded_programs_are(
    make: Callable[..., ExportedProgram], tmp_path: Path
) -> None:
    program = make(is_dynamic=True) if make is every_kind else make()
    save(with_facts(program, source="b.py:model"), tmp_path / "b.pt2")
    save(with_facts(program, source="a.py:model"), tmp_path / "a.pt2")

    found = diff_archives(tmp_path / "a.pt2", tmp_path / "b.pt2")

    assert found == diff_archives(tmp_path / "a.pt2", tmp_path / "b.pt2", trust=True)
    assert found.program.node_count_a == summarise(program).node_count
    assert [(item.field, item.a, item.b) for item in found.facts] == [("source", "a.py:model", "b.py:model")]


def test_equal_programs_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [archive(tmp_path / f"{name}.pt2", linear(), is_bound=True) for name in ("a", "b")]
    paths[1].write_bytes(paths[0].read_bytes())
    monkeypatch.setattr(loading, "load_archive", lambda *_, **__: pytest.fail("the programs are decoded"))

    assert diff_archives(*paths).is_same


def test_a_damaged_archive_is_refused_although_its_manifest_is_equal(tmp_path: Path) -> None:
    path, damaged = archive(tmp_path / "a.pt2", linear(), is_bound=True), tmp_path / "b.pt2"
    weight = load(path).state_dict["weight"].detach().numpy().tobytes()
    content = path.read_bytes()
    assert content.count(weight) == 1
    damaged.write_bytes(content.replace(weight, bytes([weight[0] ^ 1]) + weight[1:]))

    with pytest.raises(ArchiveError, match="data/weights/weight_0"):
        diff_archives(path, damaged)


def test_a_program_that_cannot_be_loaded_here_is_refused(tmp_path: Path) -> None:
    program = torch.export.export(Sends(), (torch.zeros(3),))
    save(program, tmp_path / "a.pt2")

    with pytest.raises(ArchiveError, match="exchanges data with other processes"):
        diff_archives(tmp_path / "a.pt2", tmp_path / "a.pt2")


def test_devices_and_targets_are_told(tmp_path: Path) -> None:
    for topology in ("cpu", "H100"):
        save(with_facts(exported(topology), topology=topology), tmp_path / f"{topology}.pt2")

    found = diff_archives(tmp_path / "cpu.pt2", tmp_path / "H100.pt2")

    assert not found.is_same
    assert {(item.field, item.a, item.b) for item in found.weights} == {("device", "cpu", "cuda:0")}
    assert [(item.field, item.a, item.b) for item in found.facts] == [("topology", "cpu", "H100-80GB")]
    text = " ".join(render_archive_difference(found).split())
    assert "device cpu -> cuda:0 in 7 weights: " in text
    assert "metadata topology: cpu -> H100-80GB the archives differ" in text


def test_a_bound_archive_has_the_program_of_the_weightless_one(tmp_path: Path) -> None:
    a, b = archive(tmp_path / "a.pt2", linear()), archive(tmp_path / "b.pt2", linear(), is_bound=True)

    found = diff_archives(a, b)

    assert found.is_same
    assert [(item.field, item.a, item.b) for item in found.facts] == [("weights", "none", "inside")]


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (linear(3), {("shape", "[2, 4]", "[3, 4]"), ("shape", "[2]", "[3]")}),
        (linear(bias=False), {("presence", "there", "")}),
        (linear(dtype=torch.float64), {("dtype", "float32", "float64")}),
    ],
)
def test_weights_that_look_otherwise_are_told(
    make: Callable[[], nn.Module], changes: set[tuple[str, str, str]], tmp_path: Path
) -> None:
    found = diff_archives(archive(tmp_path / "a.pt2", linear()), archive(tmp_path / "b.pt2", make))

    assert not found.is_same
    assert {(item.field, item.a, item.b) for item in found.weights} == changes


@pytest.mark.parametrize("is_stock", [False, True])
def test_other_data_is_told_with_and_without_hashes(is_stock: bool, tmp_path: Path) -> None:
    paths = []
    for name, value in (("a", 1.0), ("b", 2.0)):
        model = nn.Linear(4, 2)
        nn.init.constant_(model.weight, value)
        nn.init.zeros_(model.bias)
        program = torch.export.export(model, (torch.zeros(3, 4),))
        program.example_inputs = None
        paths.append(tmp_path / f"{name}.pt2")
        (torch.export.save if is_stock else save)(program, paths[-1])

    found = diff_archives(*paths)

    assert [(item.field, item.names) for item in found.weights] == [("data", ("weight",))]
    assert not found.is_same
    assert len(found.notes) == (2 if is_stock else 0)
    assert "different data in 1 weight: weight" in render_archive_difference(found)


def test_a_lost_tie_is_told(tmp_path: Path) -> None:
    def untied() -> nn.Module:
        model = factory()
        model.head.weight = nn.Parameter(torch.zeros(10, 4))
        return model

    for name, make in (("a", factory), ("b", untied)):
        save(fe.export(make, (torch.zeros(5, dtype=torch.long),)), tmp_path / f"{name}.pt2")

    found = diff_archives(tmp_path / "a.pt2", tmp_path / "b.pt2")

    ties = {(item.a, item.b): item.names for item in found.weights if item.field == "tied"}
    assert ties == {("embed.weight, head.weight", ""): ("embed.weight", "head.weight")}


class Older(nn.Module):
    """Loads older names of its weights."""

    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self.names = names
        self.register_load_state_dict_pre_hook(self.rename)

    @staticmethod
    def rename(module: Any, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for old, new in zip(module.names, ("scale", "shift"), strict=True):
            if old in state_dict:
                state_dict[new] = state_dict.pop(old)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.shift


def test_weights_that_come_from_other_entries_are_told(tmp_path: Path) -> None:
    checkpoint, x = {"a": torch.full((4,), 2.0), "b": torch.full((4,), 3.0)}, torch.ones(3, 4)
    names = {"first": ("a", "b"), "second": ("b", "a")}
    paths = {name: tmp_path / f"{name}.pt2" for name in names}
    for name, path in paths.items():
        save(fe.export(lambda given=names[name]: (Older(given), (x,))), path)

    found = diff_archives(*paths.values())

    results = [fe.bind(path, checkpoint).module()(2 * x)[0, 0].item() for path in paths.values()]
    assert results == [7, 8]
    assert {(item.field, item.a, item.b): item.names for item in found.weights} == {
        ("entries", "a", "b"): ("scale",),
        ("entries", "b", "a"): ("shift",),
    }
    assert not found.is_same


def test_values_for_weights_that_a_checkpoint_lacks_are_compared(tmp_path: Path) -> None:
    program = fe.export(lambda: (nn.Linear(4, 2), (torch.zeros(3, 4),)))
    for name, value in (("a", 0.0), ("b", 1.0)):
        known = with_facts(program, computed={"bias": torch.full((2,), value)})
        save(known, tmp_path / f"{name}.pt2")

    found = diff_archives(tmp_path / "a.pt2", tmp_path / "b.pt2")

    assert [(item.field, item.names) for item in found.weights] == [("data", ("bias",))]
