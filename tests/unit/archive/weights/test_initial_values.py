"""Weights that a class of transformers does not save are bound with the values that it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.export import ExportedProgram

import fakexport as fe
from fakexport.deploy import run
from fakexport.report import render_weights
from tests.unit.models.sources.tiny_configs import SEQ2SEQ

SIZES = {**SEQ2SEQ, "max_position_embeddings": 40, "decoder_start_token_id": 0}
TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


def saved(class_name: str, path: Path) -> Any:
    """The real model, whose checkpoint is in the folder."""
    model_class = getattr(transformers, class_name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**SIZES)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape) / 10 if parameter.requires_grad else 0
    model.save_pretrained(path)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("marian")
    saved("MarianMTModel", path)
    return path


@pytest.fixture(scope="module")
def program(folder: Path) -> ExportedProgram:
    program = fe.export(f"hf:{folder}")
    fe.save(program, folder / "program.pt2")
    return program


def logits(program: ExportedProgram, model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the program and of eager mode, at the sizes of the export."""
    ids = torch.randint(1, 64, (2, 16), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids.clone()}
    with torch.no_grad():
        return run(program, inputs)["logits"], model(**inputs).logits


@pytest.mark.parametrize("is_loaded", [False, True], ids=["exported", "loaded"])
def test_a_saved_checkpoint_binds_and_computes_what_eager_does(
    is_loaded: bool, program: ExportedProgram, folder: Path
) -> None:
    assert not set(TABLES) & load_file(folder / "model.safetensors").keys()
    real = transformers.MarianMTModel.from_pretrained(folder)

    bound = fe.bind(fe.load(folder / "program.pt2") if is_loaded else program, folder)

    found, expected = logits(bound, real)
    assert torch.equal(found, expected)
    assert all(torch.equal(bound.state_dict[name], real.state_dict()[name]) for name in TABLES)


def test_a_table_of_the_checkpoint_wins(program: ExportedProgram, folder: Path) -> None:
    state = load_file(folder / "model.safetensors") | {TABLES[0]: torch.ones(40, 32)}

    bound = fe.bind(program, state)

    assert torch.equal(bound.state_dict[TABLES[0]], torch.ones(40, 32))
    assert not torch.equal(bound.state_dict[TABLES[1]], torch.ones(40, 32))


def test_the_report_names_them(program: ExportedProgram, folder: Path) -> None:
    report = fe.verify_weights(program, folder)

    assert report.is_bindable
    assert set(report.computed) == set(TABLES)
    assert f"computed    {', '.join(report.computed)}" in render_weights(report)
    assert set(fe.verify_weights(f"hf:{folder}", folder).computed) == set(TABLES)
    whole = transformers.MarianMTModel.from_pretrained(folder).state_dict()
    assert fe.verify_weights(program, whole).computed == ()


def test_an_archive_has_them_without_its_model(program: ExportedProgram, folder: Path) -> None:
    """Also one that was loaded, moved and saved again; the tables are equal, and written once."""
    state, real = load_file(folder / "model.safetensors"), transformers.MarianMTModel.from_pretrained(folder)
    manifest = fe.save(fe.retarget(fe.load(folder / "program.pt2"), "cpu"), folder / "again.pt2")

    bound = fe.bind(fe.load(folder / "again.pt2"), state)

    found, expected = logits(bound, real)
    assert torch.equal(found, expected)
    sizes = {record.name: record.size for record in manifest.records if "computed" in record.name}
    assert sorted(sizes.values()) == [4, 40 * 32 * 4]
    assert fe.verify_weights(folder / "again.pt2", state).is_bindable
    bound.state_dict[TABLES[0]].data.zero_()
    again = fe.bind(fe.load(folder / "again.pt2"), state)
    assert torch.equal(again.state_dict[TABLES[0]], real.state_dict()[TABLES[0]])


def test_a_table_that_is_too_large_for_the_archive_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fakexport.archive.computed_weights.MOST_COMPUTED_BYTES", 40 * 32 * 4 - 1)
    fe.save(fe.export(f"hf:{folder}"), tmp_path / "program.pt2")

    with pytest.raises(fe.BindError, match=r"FE701 \(2\)") as caught:
        fe.bind(tmp_path / "program.pt2", load_file(folder / "model.safetensors"))

    assert "too large for the archive: install transformers" in str(caught.value)
    assert fe.bind(tmp_path / "program.pt2", folder).state_dict.keys() >= set(TABLES)


def test_what_is_drawn_even_after_a_seed_or_not_named_stays_missing(folder: Path) -> None:
    def factory() -> Any:
        torch.manual_seed(0)
        model = transformers.MarianMTModel(transformers.MarianConfig(**SIZES))
        model._keys_to_ignore_on_save = {
            "model.encoder.layers.0.fc1.weight",
            "model.encoder.layers.0.fc1.bias",
        }
        model._keys_to_ignore_on_load_missing = set()
        ids = torch.ones(2, 16, dtype=torch.long)
        return model.eval(), (), {"input_ids": ids, "decoder_input_ids": ids, "use_cache": False}

    program = fe.export(factory)
    state = load_file(folder / "model.safetensors")
    del state["model.encoder.layers.0.fc1.weight"], state["model.encoder.layers.0.fc1.bias"]

    report = fe.verify_weights(program, state)

    assert report.computed == ("model.encoder.layers.0.fc1.bias",)
    missing = {name for finding in report.findings if finding.code == "FE701" for name in finding.names}
    assert missing == {"model.encoder.layers.0.fc1.weight", *TABLES}


@pytest.mark.slow
def test_a_weight_that_may_be_missing_has_the_value_that_from_pretrained_leaves(tmp_path: Path) -> None:
    saved("BartForConditionalGeneration", tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state["final_logits_bias"]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    real = transformers.BartForConditionalGeneration.from_pretrained(tmp_path)

    bound = fe.bind(fe.export(f"hf:{tmp_path}"), tmp_path)

    found, expected = logits(bound, real)
    assert torch.equal(found, expected)
