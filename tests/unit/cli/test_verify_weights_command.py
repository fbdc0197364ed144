"""`fakexport verify-weights`: exit codes, streams, formats."""

import json

import pytest
import torch
from safetensors.torch import save_file

from fakexport.cli import main

MODEL = """
import torch
from torch import nn

def factory():
    print("constructed")
    return nn.Linear(4, 2)
"""

OWN = """
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

class OwnConfig(PretrainedConfig):
    model_type = "own"

class Own(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        print("constructed")
        super().__init__(config)
        self.layer = nn.Linear(4, 2)
        self.post_init()
"""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:factory"


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, path)
    return str(path)


def test_a_checkpoint_that_fits_is_exit_code_0(source, checkpoint, capsys):
    assert main(["verify-weights", source, checkpoint]) == 0

    out, err = capsys.readouterr()
    assert out.startswith(f"model       {source}: 2 weights\ncheckpoint  {checkpoint}: 2 entries, 40 B\n")
    assert err == "constructed\n"


def test_findings_are_exit_code_1_and_json_has_them(source, tmp_path, capsys):
    torch.save({"weight": torch.zeros(4, 2)}, tmp_path / "old.pt")

    assert main(["verify-weights", source, str(tmp_path / "old.pt"), "--format", "json"]) == 1

    data = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in data["findings"]] == ["FE701", "FE702"]


def test_a_dtype_is_that_of_the_model(source, checkpoint, capsys):
    assert main(["verify-weights", source, checkpoint, "--dtype", "bfloat16"]) == 1

    assert "error[FE703]" in capsys.readouterr().out


def test_the_code_of_a_repository_runs_only_on_request(tmp_path, checkpoint, capsys):
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "own", "architectures": ["Own"], "auto_map": own})
    )
    (tmp_path / "own.py").write_text(OWN)
    command = ["verify-weights", f"hf:{tmp_path}", checkpoint]

    assert main(command) == 2
    assert "run it with --trust-remote-code" in capsys.readouterr().err
    assert main([*command, "--trust-remote-code"]) == 1  # The checkpoint has no prefix `layer.`.
    assert "constructed" in capsys.readouterr().err
    assert main(["verify-weights", "model.pt2", checkpoint, "--trust-remote-code"]) == 2
    assert "--trust-remote-code applies to models, not to archives" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing.safetensors"], "nothing.safetensors: No such file or directory"),
        (["."], "has no .safetensors file"),
        (["CHECKPOINT", "--dtype", "int8"], "unknown floating-point dtype 'int8'"),
        (["CHECKPOINT", "--target", "H1000000"], "H1000000"),
    ],
)
def test_a_bad_call_is_exit_code_2_and_one_line(
    arguments, reason, source, checkpoint, capsys, tmp_path, monkeypatch
):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    arguments = [checkpoint if argument == "CHECKPOINT" else argument for argument in arguments]

    assert main(["verify-weights", source, *arguments]) == 2

    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line != "constructed"]
    assert out == ""
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert reason in lines[0]
