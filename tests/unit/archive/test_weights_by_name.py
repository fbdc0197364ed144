"""What needs no torch says the same as `verify_weights`, or nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fakexport as fe
from fakexport.archive import save_bundle, verified_by_name, weights_by_name
from fakexport.files.documents import UnboundName


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


def tied():
    return Tied().eval(), (torch.zeros(1, 3, dtype=torch.int64),)


def normed():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).eval().bfloat16(), (
        torch.zeros(3, 4).bfloat16(),
    )


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """An archive whose head is tied, and the weights that it needs."""
    path = tmp_path_factory.mktemp("tied") / "model.pt2"
    fe.save(fe.export(tied), path)
    return path, {"embed.weight": torch.ones(8, 4)}


def written(folder: Path, *files: dict[str, torch.Tensor]) -> Path:
    """A folder of one file, or of shards with an index."""
    if len(files) == 1:
        save_file(files[0], folder / "model.safetensors")
        return folder
    names = {}
    for number, tensors in enumerate(files):
        save_file(tensors, folder / f"{number}.safetensors")
        names |= dict.fromkeys(tensors, f"{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


@pytest.mark.parametrize("topology", ["cpu", "H100"])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_report_is_that_of_verify_weights(tmp_path, topology, shards):
    path = tmp_path / "model.pt2"
    fe.save(fe.export(normed, target=topology), path)
    state = normed()[0].state_dict()
    parts = [dict(list(state.items())[start::shards]) for start in range(shards)]
    folder = written(tmp_path, *parts)

    report = verified_by_name(path, str(folder))

    assert report is not None
    assert report == fe.verify_weights(path, str(folder))
    assert report.findings == ()


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_a_tied_weight_has_any_of_its_names(weights, tmp_path, name):
    path, state = weights

    report = verified_by_name(path, str(written(tmp_path, {name: state["embed.weight"]})))

    assert report is not None
    assert report == fe.verify_weights(path, str(tmp_path))
    assert report.weights == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"embed.weight": torch.ones(8, 5)},
        {"embed.weight": torch.ones(8, 4, dtype=torch.float16)},
        {"embed.weight": torch.ones(8, 4), "head.weight": torch.ones(8, 4)},
        {"embed.weight": torch.ones(8, 4), "other": torch.ones(1)},
        {"other": torch.ones(8, 4)},
    ],
    ids=["shape", "dtype", "untied", "unexpected", "missing"],
)
def test_a_finding_is_left_to_verify_weights(weights, tmp_path, changed):
    path, _ = weights

    assert verified_by_name(path, str(written(tmp_path, changed))) is None
    assert fe.verify_weights(path, str(tmp_path)).findings


def test_other_forms_are_left_to_verify_weights(weights, tmp_path):
    path, state = weights
    folder = written(tmp_path, state)
    torch.save(state, tmp_path / "model.pt")
    save_bundle({"one": fe.load(path)}, tmp_path / "bundle.pt2")
    torch.export.save(torch.export.export(*tied()), tmp_path / "stock.pt2")
    (tmp_path / "damaged.pt2").write_bytes(path.read_bytes()[:-40])

    assert verified_by_name(path, str(folder)) is not None
    assert verified_by_name(path, str(tmp_path / "model.pt")) is None
    assert verified_by_name(path, str(tmp_path / "nowhere.safetensors")) is None
    assert verified_by_name(path, "hf:org/name") is None
    for other in ("bundle.pt2", "stock.pt2", "damaged.pt2", "nowhere.pt2"):
        assert verified_by_name(tmp_path / other, str(folder)) is None


def test_a_warning_is_left_to_verify_weights(weights, tmp_path):
    path, state = weights
    folder = written(tmp_path, state)
    (folder / "model.safetensors.index.json").write_text("{}")

    assert verified_by_name(path, str(folder)) is None


@pytest.mark.parametrize(
    "changes",
    [{"prefix": ("", "")}, {"unbound_constants": (UnboundName("noise", "unknown", "text"),)}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_manifest_that_says_more_is_left_to_verify_weights(weights, tmp_path, monkeypatch, changes):
    path, state = weights
    folder = written(tmp_path, state)
    read = weights_by_name.read_manifest

    def changed(container):
        manifest = read(container)
        return replace(manifest, methods={"model": replace(manifest.only, **changes)})

    assert verified_by_name(path, str(folder)) is not None
    monkeypatch.setattr(weights_by_name, "read_manifest", changed)
    assert verified_by_name(path, str(folder)) is None
