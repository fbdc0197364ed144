"""source and compare on the command line, as a user strings them together with export and bind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402  (comes with transformers)

from tests.command_line import fakexport_here  # noqa: E402

CONFIG = {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}

# A process that has neither fakexport nor the model's package.
ALONE = """
import sys
sys.modules.update(dict.fromkeys(("fakexport", "transformers", "safetensors", "numpy")))
import torch
from program import Program
program = Program(device="cpu")
program.load_state_dict(torch.load("weights.pt"), strict=True)
torch.save(program(**torch.load("inputs.pt")), "outputs.pt")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, inputs, and an archive for a GPU that is not here."""
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIG)).eval()
    model.save_pretrained(folder / "checkpoint")
    ids = torch.randint(0, 64, (3, 7))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    save_file(inputs, folder / "in.safetensors")
    torch.save(inputs, folder / "inputs.pt")
    torch.save(model.state_dict(), folder / "weights.pt")
    source = f"hf:{folder}/checkpoint/config.json"
    fakexport_here("export", source, "--target", "H100", "--dynamic", "auto", "-o", f"{folder}/model.pt2")
    return folder


@pytest.mark.slow
def test_a_written_program_runs_where_there_is_only_torch(folder: Path) -> None:
    written = fakexport_here("source", f"{folder}/model.pt2", "-o", f"{folder}/program.py")
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    bound = f"{folder}/bound.pt2"
    fakexport_here("bind", f"{folder}/model.pt2", f"{folder}/checkpoint", "--devices", "cpu", "-o", bound)
    fakexport_here("run", bound, "--inputs", f"{folder}/in.safetensors", "-o", f"{folder}/out.safetensors")

    given = torch.load(folder / "outputs.pt")

    assert torch.equal(given["logits"], load_file(folder / "out.safetensors")["logits"])
    assert "classes" in written.stderr
    assert written.stdout == ""
    assert str(folder) not in (folder / "program.py").read_text()


def test_the_text_goes_to_stdout_without_a_file(folder: Path) -> None:
    written = fakexport_here("source", f"{folder}/model.pt2", "-o", f"{folder}/again.py")

    shown = fakexport_here("source", f"{folder}/model.pt2")

    assert shown.stdout == (folder / "again.py").read_text()
    assert written.stdout == shown.stderr == ""


@pytest.mark.slow
def test_a_program_is_compared_with_its_model(folder: Path) -> None:
    source, archive = f"hf:{folder}/checkpoint/config.json", f"{folder}/model.pt2"
    given = ["--devices", "cpu", "--inputs", f"{folder}/in.safetensors"]

    of_checkpoint = fakexport_here("compare", source, archive, f"{folder}/checkpoint", *given)
    of_seed = fakexport_here("compare", source, archive, "--devices", "cpu", "--format", "json")

    assert "the outputs are equal bit for bit" in of_checkpoint.stdout
    assert of_checkpoint.stdout.startswith(f"weights: from {folder}/checkpoint")
    data = json.loads(of_seed.stdout)
    assert data["is_identical"] is True
    assert data["assumptions"] == [
        "weights: from the model, constructed under seed 0",
        "inputs: the example inputs of the source",
    ]


def test_a_changed_model_is_found_at_its_line(folder: Path) -> None:
    config = json.loads((folder / "checkpoint/config.json").read_text())
    (folder / "other.json").write_text(json.dumps({**config, "layer_norm_epsilon": 1e-3}))

    done = fakexport_here(
        *("compare", f"hf:{folder}/other.json:AutoModelForCausalLM", f"{folder}/model.pt2"),
        *(f"{folder}/checkpoint", "--devices", "cpu", "--inputs", f"{folder}/in.safetensors"),
        code=1,
    )

    assert "first divergence\n  node    layer_norm = aten.layer_norm.default\n" in done.stdout
    assert "  module  transformer.h.0.ln_1\n" in done.stdout
    assert "modeling_gpt2.py:" in done.stdout


def test_what_does_not_fit_is_one_line(folder: Path) -> None:
    config = json.loads((folder / "checkpoint/config.json").read_text())
    (folder / "wide.json").write_text(json.dumps({**config, "n_embd": 64}))
    archive = f"{folder}/model.pt2"

    wide = fakexport_here(
        "compare", f"hf:{folder}/wide.json:AutoModelForCausalLM", archive, "--devices", "cpu", code=2
    )
    gpu = fakexport_here("compare", f"hf:{folder}/checkpoint/config.json", archive, code=2)
    missing = fakexport_here("source", f"{folder}/none.pt2", code=2)

    for done in (wide, gpu, missing):
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
