"""Pipeline stages from the command line: export, bind, run in one process and in several."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import fakexport as fe
from tests.command_line import fakexport_here
from tests.forked import run_in_ranks
from tests.parallel_models import small_model

MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x, scale):
        first = self.blocks[0](x).transpose(0, 1)  # Sent to all later stages, and not contiguous.
        y = x
        for block in self.blocks[1:]:
            y = torch.relu(block(y)) * scale + first.transpose(0, 1)
        return {"y": y, "first": first.transpose(0, 1)}


def factory():
    torch.manual_seed(0)
    return Model(), (torch.randn(4, 16), torch.randn(4, 1))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported stages, their weights, inputs, and what the model gives."""
    folder = tmp_path_factory.mktemp("stages")
    (folder / "model.py").write_text(MODEL)
    names: dict[str, object] = {}
    exec(MODEL, names)
    model = names["factory"]()[0]
    inputs = {"x": torch.randn(6, 16), "scale": torch.randn(6, 1)}
    save_file(dict(model.state_dict()), folder / "weights.safetensors")
    save_file(inputs, folder / "inputs.safetensors")
    with torch.no_grad():
        save_file({k: v.contiguous() for k, v in model(**inputs).items()}, folder / "wanted.safetensors")
    source = f"{folder / 'model.py'}:factory"
    sizes = ("--dynamic", "x.0=n=2..64", "--dynamic", "scale.0=n")
    fakexport_here("export", source, "--parallel", "pp=3", *sizes, "-o", folder / "stages.pt2")
    return folder


def test_one_process_runs_all_stages(folder, tmp_path):
    bound, out = tmp_path / "bound.pt2", tmp_path / "out.safetensors"
    inputs = ("--inputs", folder / "inputs.safetensors", "-o", out)

    fakexport_here("bind", folder / "stages.pt2", folder / "weights.safetensors", "-o", bound)
    printed = fakexport_here("run", bound, *inputs).stdout

    assert printed.split() == ["y", "float32[6,", "16]", "first", "float32[6,", "16]"]
    wanted = load_file(folder / "wanted.safetensors")
    assert all(torch.equal(value, wanted[name]) for name, value in load_file(out).items())


def test_an_adapter_of_stages_is_not_dropped(folder, tmp_path):
    inputs = ("--inputs", folder / "inputs.safetensors")

    done = fakexport_here("run", folder / "stages.pt2", *inputs, "--adapter", tmp_path, code=2)

    assert "an adapter is bound together with its base model" in done.stderr


def test_one_stage_is_bound_to_its_part_of_a_checkpoint(folder, tmp_path):
    bound = tmp_path / "stage1.pt2"

    done = fakexport_here(
        "bind", folder / "stages.pt2", folder / "weights.safetensors", "--method", "stage1", "-o", bound
    )

    assert "FE704" not in done.stderr
    assert "1 of 3, which begins at" in fakexport_here("inspect", bound).stdout
    assert bound.stat().st_size < (folder / "weights.safetensors").stat().st_size * 6


def test_what_an_archive_says_of_a_stage(folder):
    printed = fakexport_here("inspect", folder / "stages.pt2").stdout

    assert "2 of 3, which begins at blocks." in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--microbatches", "2"], "--microbatches needs a bundle of stages"),
        (["--rank", "0"], "No such option"),
    ],
)
def test_bad_usage_of_run_is_one_line(folder, arguments, message):
    done = fakexport_here(
        "run", folder / "stages.pt2", "--inputs", folder / "inputs.safetensors", *arguments, code=2
    )

    assert message in done.stderr


def in_three_processes(folder: Path, *arguments: object) -> tuple[int, str]:
    """The sum of the exit codes, and what the processes print on stderr. test_torchrun.py has torchrun."""
    given = (folder / "stages.pt2", folder / "weights.safetensors", "--inputs", folder / "inputs.safetensors")
    ended = run_in_ranks(3, "fakexport", "run", *given, *arguments)
    return sum(each.returncode for each in ended), "".join(each.stderr for each in ended)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--microbatches", "3"), ("--repeat", "2")])
def test_each_process_runs_a_stage(folder, tmp_path, arguments):
    out = tmp_path / "out.safetensors"

    code, errors = in_three_processes(folder, "-o", out, *arguments)

    assert code == 0, errors
    assert "FE704" not in errors  # The other entries of the checkpoint are those of other stages.
    wanted, found = load_file(folder / "wanted.safetensors"), load_file(out)
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        if arguments == ("--microbatches", "3"):
            torch.testing.assert_close(value, wanted[name])  # Matrix products of other sizes.
        else:
            assert torch.equal(value, wanted[name])


@pytest.mark.slow
def test_a_batch_that_cannot_be_cut_is_one_line(folder):
    code, errors = in_three_processes(folder, "--microbatches", "4")

    assert code != 0
    assert "error: a batch of 6 cannot be cut into 4 equal parts" in errors


NOTHING_PASSED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.row = nn.Parameter(torch.ones(1, 4))

    def forward(self, x):
        return {str(at): block(x if at == 1 else self.row) for at, block in enumerate(self.blocks)}


def factory():
    return Model(), (torch.ones(2, 4),)
"""


@pytest.mark.slow
def test_stages_that_pass_nothing_to_each_other_run_in_processes(tmp_path):
    (tmp_path / "model.py").write_text(NOTHING_PASSED)
    names: dict[str, object] = {}
    exec(NOTHING_PASSED, names)
    model, (x,) = names["factory"]()
    save_file(dict(model.state_dict()), tmp_path / "weights.safetensors")
    save_file({"x": x}, tmp_path / "inputs.safetensors")
    source, out = f"{tmp_path / 'model.py'}:factory", tmp_path / "out.safetensors"
    places = "pp=3,at=blocks.1,blocks.2"
    fakexport_here("export", source, "--parallel", places, "-o", tmp_path / "stages.pt2")

    code, errors = in_three_processes(tmp_path, "-o", out)

    assert code == 0, errors
    with torch.no_grad():
        wanted = model(x)
    assert all(torch.equal(value, wanted[name]) for name, value in load_file(out).items())


@pytest.mark.slow
def test_stages_of_ranks_are_chosen_by_name(tmp_path):
    """`--rank 0` would be one of the rank's stages."""
    model = small_model("llama")
    model.save_pretrained(tmp_path / "model")
    stages, bound = tmp_path / "stages.pt2", tmp_path / "bound.pt2"
    source = f"hf:{tmp_path / 'model' / 'config.json'}"

    fakexport_here("export", source, "--parallel", "tp=2,pp=2", "-o", stages)

    assert (
        "rank0_stage0, rank0_stage1, rank1_stage0, rank1_stage1" in fakexport_here("inspect", stages).stdout
    )
    for arguments in (("bind", stages, tmp_path / "model", "--rank", "0", "-o", bound), ("run", stages)):
        done = fakexport_here(*arguments, "--trust", code=2)
        assert "has the stages of several ranks: choose one program (--method NAME)" in done.stderr
    # Each stage cuts its part out of a checkpoint with more entries than it uses.
    fakexport_here("bind", stages, tmp_path / "model", "--method", "rank1_stage1", "-o", bound, "--trust")
    weight = fe.load(bound, trust=True).state_dict["model.layers.1.self_attn.q_proj.weight"]
    whole = model.state_dict()["model.layers.1.self_attn.q_proj.weight"]
    assert torch.equal(weight, whole[len(whole) // 2 :])
