"""Checkpoints against archives, and the weights that are in archives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive import save, verify_archived_weights
from fakexport.files.container import ArchiveError
from tests.unit.archive.test_save_and_load import Drawn, exported, factory


def archived(path: Path, topology: str = "cpu") -> Path:
    save(exported(topology), path)
    return path


@pytest.mark.parametrize("topology", ["cpu", "H100"])
def test_an_archive_wants_what_its_program_wants(topology: str, tmp_path: Path) -> None:
    path = archived(tmp_path / "model.pt2", topology)
    state = dict(factory().state_dict())
    bent = {**state, "norm.bias": torch.zeros(5), "extra": torch.zeros(1)}
    del bent["norm.weight"], bent["head.weight"]

    for checkpoint in (state, bent):
        report, by_program = fe.verify_weights(path, checkpoint), fe.verify_weights(fe.load(path), checkpoint)

        assert report.findings == by_program.findings
        assert (report.weights, report.is_bindable) == (by_program.weights, by_program.is_bindable)
        assert report.source == str(path)
    assert {finding.code for finding in report.findings} == {"FE701", "FE702", "FE704"}


def test_a_constant_without_a_value_is_wanted_too(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        with pytest.warns(UserWarning, match="FE602"):
            save(fe.export(Drawn, (torch.zeros(4),)), tmp_path / "model.pt2")

    (finding,) = fe.verify_weights(tmp_path / "model.pt2", {}).findings
    assert (finding.code, finding.names) == ("FE701", ("noise",))
    assert fe.verify_weights(tmp_path / "model.pt2", {"noise": torch.zeros(4)}).is_bindable


def test_the_dtype_of_an_archive_cannot_be_chosen(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the dtypes of an archive cannot be changed"):
        fe.verify_weights(archived(tmp_path / "model.pt2"), {}, dtype=torch.bfloat16)


def bound(path: Path, value: float = 1.0) -> Path:
    model = nn.Linear(4, 2)
    nn.init.constant_(model.weight, value)
    save(torch.export.export(model, (torch.zeros(3, 4),)), path)
    return path


def test_the_weights_of_a_bound_archive_are_whole(tmp_path: Path) -> None:
    report = verify_archived_weights(bound(tmp_path / "bound.pt2"))

    assert report.is_bindable
    assert (report.weights, report.entry_bytes, report.findings) == (2, 40, ())


def test_a_damaged_weight_is_refused(tmp_path: Path) -> None:
    path = bound(tmp_path / "bound.pt2", 3.0)
    content = path.read_bytes()
    data = torch.full((2, 4), 3.0).numpy().tobytes()
    path.write_bytes(content.replace(data, data[:-1] + b"\x41"))

    with pytest.raises(ArchiveError, match="data/weights/weight_0: is damaged"):
        verify_archived_weights(path)


def test_a_weight_that_is_no_number_is_a_warning(tmp_path: Path) -> None:
    report = verify_archived_weights(bound(tmp_path / "bound.pt2", float("nan")))

    assert [(finding.code, finding.names) for finding in report.findings] == [("FE706", ("weight",))]
    assert report.is_bindable


def test_an_archive_without_weights_asks_for_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no weights of its own: pass a checkpoint"):
        verify_archived_weights(archived(tmp_path / "model.pt2"))
