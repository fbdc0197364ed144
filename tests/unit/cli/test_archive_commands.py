"""inspect, diff, verify-weights and run on archives: exit codes, streams, and `--trust`."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file

import fakexport as fe
from fakexport.cli import main
from tests.known_facts import with_facts
from tests.unit.archive.test_stock_archives import legacy


def model() -> nn.Module:
    return nn.Linear(4, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`model.pt2`, `device.pt2`, `bound.pt2`, `stock.pt2` with pickled inputs, a checkpoint and inputs."""
    folder = tmp_path_factory.mktemp("archives")
    torch.manual_seed(0)
    eager = model()
    save_file(dict(eager.state_dict()), folder / "checkpoint.safetensors")
    save_file({"input": torch.ones(3, 4)}, folder / "in.safetensors")
    program = fe.export(model, (torch.zeros(3, 4),))
    fe.save(program, folder / "model.pt2")
    fe.save(fe.export(model, (torch.zeros(3, 4),), target="H100"), folder / "device.pt2")
    fe.save(fe.bind(program, folder / "checkpoint.safetensors"), folder / "bound.pt2")
    torch.export.save(torch.export.export(eager, (torch.zeros(3, 4),)), folder / "stock.pt2")
    return folder


def test_inspect_shows_an_archive(folder, capsys):
    assert main(["inspect", f"{folder}/device.pt2"]) == 0
    assert "target        H100-80GB\n" in capsys.readouterr().out
    assert main(["inspect", f"{folder}/device.pt2", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["methods"]["model"]["topology"] == "H100-80GB"


def target(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str | None, list[str], dict[str, str]]:
    """The topology, the profiles and the device map that `inspect --format json` shows."""
    capsys.readouterr()
    assert main(["inspect", f"{path}", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)["methods"]["model"]
    return data["topology"], data["profiles"], data["device_map"]


def test_a_program_that_was_put_elsewhere_has_the_target_where_it_is(folder, tmp_path, capsys):
    program = fe.load(folder / "device.pt2")
    fe.save(with_facts(program, device_map={"": "cuda:0"}), tmp_path / "gpu.pt2")
    assert target(tmp_path / "gpu.pt2", capsys) == ("H100-80GB", ["H100-80GB"], {"": "cuda:0"})

    for device_map in ("cpu", "cuda:0=cpu"):
        command = ["bind", f"{tmp_path}/gpu.pt2", f"{folder}/checkpoint.safetensors"]
        assert main([*command, "--devices", device_map, "-o", f"{tmp_path}/bound.pt2"]) == 0
        assert target(tmp_path / "bound.pt2", capsys) == ("cpu", ["cpu"], {})
    assert main(["retarget", f"{tmp_path}/gpu.pt2", "--to", "cpu", "-o", f"{tmp_path}/cpu.pt2"]) == 0
    assert target(tmp_path / "cpu.pt2", capsys) == ("cpu", ["cpu"], {})


@pytest.mark.parametrize("options", [["--dtype", "bfloat16"], ["--target", "H100"]])
def test_inspect_refuses_options_of_models_for_archives(options, folder, capsys):
    assert main(["inspect", f"{folder}/model.pt2", *options]) == 2
    assert "apply to models, not to archives" in capsys.readouterr().err


def test_inspect_refuses_options_of_archives_for_models(capsys):
    assert main(["inspect", "hf:gpt2", "--format", "json"]) == 2
    assert "apply to archives, not to models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "code", "last"),
    [
        ("model.pt2", "model.pt2", 0, "same program, same weights"),
        ("model.pt2", "bound.pt2", 0, "same program, same weights"),
        ("model.pt2", "device.pt2", 1, "the archives differ"),
    ],
)
def test_diff_tells_by_its_exit_code(first, second, code, last, folder, capsys):
    assert main(["diff", f"{folder}/{first}", f"{folder}/{second}"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert main(["diff", f"{folder}/{first}", f"{folder}/{second}", "--format", "json"]) == code
    assert json.loads(capsys.readouterr().out)["is_same"] is (code == 0)


@pytest.mark.parametrize(
    "command",
    [
        ["diff", "stock.pt2", "model.pt2"],
        ["inspect", "stock.pt2"],
        ["run", "stock.pt2", "--inputs", "in.safetensors"],
        ["bind", "stock.pt2", "checkpoint.safetensors", "-o", "out.pt2"],
        ["verify-weights", "stock.pt2", "checkpoint.safetensors"],
        ["verify-weights", "stock.pt2"],
        ["inspect", "stock.pt2", "--devices"],
        ["retarget", "stock.pt2", "--to", "cpu", "-o", "out.pt2"],
        ["source", "stock.pt2", "-o", "out.py"],
    ],
    ids=" ".join,
)
def test_pickled_example_inputs_need_no_trust(command, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)

    # The programs differ in what they check of their inputs.
    assert main(command) == (1 if command[0] == "diff" else 0)
    assert "error" not in capsys.readouterr().err


def test_run_reads_a_file_that_needs_trust(folder, tmp_path, capsys):
    eager = model()
    path = legacy(tmp_path / "old.pt2", torch.export.export(eager, (torch.zeros(3, 4),)))
    outputs = tmp_path / "out.safetensors"
    run = ["run", f"{path}", "--inputs", f"{folder}/in.safetensors", "-o", f"{outputs}"]

    assert main(run) == 2
    assert main([*run, "--trust"]) == 0

    torch.testing.assert_close(load_file(outputs)["output"], eager(torch.ones(3, 4)))


def test_verify_weights_takes_an_archive(folder, capsys):
    checkpoint = f"{folder}/checkpoint.safetensors"

    assert main(["verify-weights", f"{folder}/device.pt2", checkpoint]) == 0
    assert "all 2 weights fit" in capsys.readouterr().out
    assert main(["verify-weights", f"{folder}/device.pt2", f"{folder}/in.safetensors"]) == 1
    assert main(["verify-weights", f"{folder}/bound.pt2"]) == 0
    assert main(["verify-weights", f"{folder}/model.pt2"]) == 2
    assert "pass a checkpoint to verify" in capsys.readouterr().err
    assert main(["verify-weights", "hf:gpt2"]) == 2
    assert "pass the checkpoint to verify" in capsys.readouterr().err


def test_run_leaves_the_old_outputs_where_it_cannot_write(folder, capsys):
    run = ["run", f"{folder}/bound.pt2", "--inputs", f"{folder}/in.safetensors", "-o"]

    assert main([*run, f"{folder}/out.safetensors"]) == 0
    assert load_file(folder / "out.safetensors")["output"].shape == (3, 2)
    assert main([*run, f"{folder}/no/out.safetensors"]) == 2
    assert "error: cannot write" in capsys.readouterr().err


def test_export_says_in_the_archive_what_it_did(tmp_path, capsys, monkeypatch):
    (tmp_path / "model.py").write_text(
        "import torch\ndef factory():\n    return torch.nn.Linear(4, 2), (torch.zeros(3, 4),)\n"
    )
    monkeypatch.chdir(tmp_path)
    target = ["--target", "2xH100", "--device-map", "cuda:1", "--dtype", "bfloat16", "--no-progress"]

    main(["export", f"{tmp_path}/model.py:factory", "-o", "one.pt2", "--dynamic", "input.0=2..64", *target])
    capsys.readouterr()
    assert main(["inspect", "one.pt2", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)["methods"]["model"]

    assert said["source"] == "model.py:factory"
    assert (said["topology"], said["profiles"]) == ("2xH100-80GB", ["H100-80GB"] * 2)
    assert said["device_map"] == {"": "cuda:1"}
    assert (said["dtype"], said["dynamic_shapes"]) == ("bfloat16", "input.0=2..64")
    assert "--strict" in said["skipped_checks"][0]
    assert str(tmp_path).encode() not in (tmp_path / "one.pt2").read_bytes()


@pytest.mark.parametrize("command", ["bind", "run"])
def test_what_binding_warns_of_is_a_line_and_nothing_else_is(command, folder, tmp_path, capsys):
    tensors = load_file(folder / "checkpoint.safetensors")
    save_file({**tensors, "head.bias": torch.full((1,), torch.nan)}, tmp_path / "more.safetensors")
    given = {
        "bind": ["-o", f"{tmp_path}/bound.pt2"],
        "run": ["--inputs", f"{folder}/in.safetensors", "-o", f"{tmp_path}/out.safetensors"],
    }

    code = main([command, f"{folder}/model.pt2", f"{tmp_path}/more.safetensors", *given[command]])

    assert code == 0
    (line,) = capsys.readouterr().err.splitlines()
    told = "more.safetensors has an entry that the model does not use: head.bias"
    assert line == f"warning: FE704: {tmp_path}/{told}"


def test_a_program_of_torch_has_no_facts_and_inspect_says_so(tmp_path, capsys):
    fe.save(torch.export.export(torch.nn.Linear(4, 2), (torch.zeros(3, 4),)), tmp_path / "plain.pt2")

    assert main(["inspect", f"{tmp_path}/plain.pt2"]) == 0

    assert "unknown: the program was exported by torch, not by fakexport" in capsys.readouterr().out
