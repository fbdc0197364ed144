"""`torchrun ... fakexport run`: the ranks of a model, each in a process, from the command line alone."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.command_line import fakexport
from tests.forked import run_in_ranks
from tests.parallel_models import logits_of, small_model, token_ids

pytest.importorskip("transformers")


SHAPES = {"weight": (2, 2), "bias": (2,)}


def torchrun(*arguments: object, fails: bool = False) -> str:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "fakexport")
    command = [sys.executable, *launcher, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode != 0) is fails, ended.stderr
    return ended.stderr


@pytest.mark.slow
def test_two_processes_run_the_model(tmp_path):
    """Once with the checkpoint, of which each binds its parts, once bound before."""
    model, ids = small_model("llama"), token_ids()[0]
    model.save_pretrained(tmp_path / "model")
    inputs, ranks, bound = (tmp_path / name for name in ("inputs.safetensors", "ranks.pt2", "bound.pt2"))
    save_file({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, inputs)

    source = f"hf:{tmp_path / 'model' / 'config.json'}"
    fakexport("export", source, "--parallel", "tp=2", "--dynamic", "auto", "-o", ranks)
    fakexport("bind", ranks, tmp_path / "model", "-o", bound, "--trust")
    out = tmp_path / "out.safetensors"
    run = ("--inputs", inputs, "-o", out, "--trust")
    for is_bound in (False, True):
        if is_bound:
            assert [each.returncode for each in run_in_ranks(2, "fakexport", "run", bound, *run)] == [0, 0]
        else:
            torchrun("run", ranks, tmp_path / "model", *run)

        logits = load_file(out)["logits"]
        torch.testing.assert_close(logits, logits_of(model, ids), rtol=2e-5, atol=2e-5)
        out.unlink()


@pytest.mark.slow
def test_a_process_whose_partner_ended_is_not_at_fault(tmp_path):
    """The inputs are missing, which the process of the first stage reports."""
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\n\ndef build():\n"
        "    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), (torch.zeros(1, 2),)\n"
    )
    stages, weights = tmp_path / "stages.pt2", tmp_path / "weights.safetensors"
    save_file({f"{i}.{name}": torch.ones(shape) for i in (0, 2) for name, shape in SHAPES.items()}, weights)
    fakexport("export", f"{tmp_path / 'model.py'}:build", "--parallel", "pp=2,at=2", "-o", stages)

    errors = torchrun("run", stages, weights, fails=True)

    assert "the input 'input' is missing" in errors
    assert "the connection to another process ended" in errors
    assert "FE001" not in errors
