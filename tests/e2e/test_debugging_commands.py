"""source and compare on the command line, as a user strings them together with export and bind."""

import json
import subprocess
import sys

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
def folder(tmp_path_factory):
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
def test_a_written_program_runs_where_there_is_only_torch(folder):
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


def test_the_text_goes_to_stdout_without_a_file(folder):
    written = fakexport_here("source", f"{folder}/model.pt2", "-o", f"{folder}/again.py")

    shown = fakexport_here("source", f"{folder}/model.pt2")

    assert shown.stdout == (folder / "again.py").read_text()
    assert written.stdout == shown.stderr == ""


def test_a_changed_model_is_found_at_its_line(folder):
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


def test_what_does_not_fit_is_one_line(folder):
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
