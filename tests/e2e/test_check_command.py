"""`fakexport check` and `inspect` on models, with nothing stood in for anything."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from fakexport.cli import main
from tests.command_line import fakexport
from tests.contract.source_tree import ROOT
from tests.contract.test_json_schema import validate

MLP = f"{ROOT / 'examples' / 'mlp.py'}"

MODELS = """
import sys

import torch
from torch import nn


def good():
    return nn.Linear(3, 2), (torch.zeros(4, 3),)


def raises():
    raise RuntimeError("no such checkpoint")


def no_module():
    return 5


def talks():
    print("building")
    return good()


def leaves():
    sys.exit("bye")


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


def branch():
    return Branch(), (torch.zeros(3),)
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys):
    """Runs the command in this process; gives exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--no-progress"] if arguments[0] == "check" else arguments)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def models(tmp_path):
    """A folder with models and configs, good and bad."""
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "broken.json").write_text('{"model_type": "gpt2", ')
    (tmp_path / "syntax.py").write_text("def factory(:\n")
    (tmp_path / "map.json").write_text('{"": ')
    return tmp_path


def test_three_placements_of_the_mlp(run):
    for factory, target in (("cpu", "cpu"), ("gpu", "H100"), ("hybrid", "cpu+H100")):
        code, out, err = run("check", f"{MLP}:{factory}", "--target", target)

        assert (code, err) == (0, "")
        assert out.endswith("1 of 1 target exports; 0 errors, 0 warnings\n")
    assert "cpu -> cuda:0  4.0 KiB  float32[4, 256]" in out
    assert "mlp.py:37" in out


def test_two_targets_and_their_difference(run):
    code, out, _ = run("check", f"{MLP}:factory", "--target", "cpu", "--target", "H100")

    assert code == 0
    assert "  cpu -> H100: identical except for devices\n" in out
    assert out.endswith("2 of 2 targets export; 0 errors, 0 warnings\n")


def test_runtimes_are_asked_about_an_archive(run, tmp_path):
    archive = str(tmp_path / "mlp.pt2")
    assert run("export", f"{MLP}:gpu", "--target", "H100", "-o", archive)[0] == 0

    code, out, err = run("check", archive, "--runtime", "onnx", "--runtime", "tensorrt", "--format", "json")

    assert (code, err) == (0, "")
    (target,) = (report := json.loads(out))["targets"]
    validate(report, "Report")
    assert target["name"] == "H100-80GB"
    assert [answer["result"] for answer in target["runtimes"]] == ["taken", "taken"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "is exported already: ask runtimes about it with --runtime"),
        (["--runtime", "onnx", "--target", "cpu"], "--target applies to models, not to archives"),
        (["--runtime", "onnx", "--dynamic", "auto"], "--dynamic applies to models, not to archives"),
        (["--runtime", "onnx", "--update-lock"], "--locked and --update-lock apply to models"),
    ],
)
def test_what_an_archive_is_not_checked_for(run, tmp_path, options, said):
    code, _, err = run("check", str(tmp_path / "model.pt2"), *options)

    assert code == 2
    assert said in err


def test_several_programs_of_an_archive_are_rows(run, tmp_path):
    import fakexport as fe

    archive = str(tmp_path / "two.pt2")
    model, row = torch.nn.Linear(2, 2), torch.zeros(1, 2)
    fe.save_bundle({"one": fe.export(model, (row,)), "two": fe.export(model, (row.repeat(2, 1),))}, archive)

    code, out, _ = run("check", archive, "--runtime", "tensorrt", "--format", "json")

    assert code == 0
    assert [target["name"] for target in json.loads(out)["targets"]] == ["one", "two"]


def test_json_is_valid_and_the_same_in_every_run(run):
    arguments = ["check", f"{MLP}:factory", "--target", "cpu", "--target", "cpu+cuda", "--format", "json"]

    first, second = (json.loads(run(*arguments)[1]) for _ in range(2))

    validate(first, "Report")
    assert [target["name"] for target in first["targets"]] == ["cpu", "cpu+cuda"]
    assert first["targets"][1]["assumptions"] == ["'cuda' does not specify a GPU model: assuming H100-80GB"]
    assert first["measured"][0].keys() == second["measured"][0].keys()
    del first["measured"], second["measured"]
    assert json.dumps(first) == json.dumps(second)


def test_a_finding_points_at_the_line_and_is_exit_code_1(run, models):
    code, out, err = run("check", f"{models}/models.py:branch")

    line = MODELS.splitlines().index("        if x.sum() > 0:") + 1
    assert (code, err) == (1, "")
    assert "cpu     fails at capture" in out
    assert "error[FE201]: data-dependent branch: condition depends on tensor values\n" in out
    assert f"models.py:{line}:12" in out
    assert out.endswith("0 of 1 target exports; 1 error, 0 warnings\n")


def test_a_finding_in_json_is_valid(run, models):
    code, out, _ = run("check", f"{models}/models.py:branch", "--target", "cpu", "--format", "json")

    data = json.loads(out)
    validate(data, "Report")
    assert (code, data["is_clean"], data["targets"][0]["failed_stage"]) == (1, False, "capture")
    assert [finding["code"] for finding in data["diagnostics"]] == ["FE201"]


def test_a_factory_that_raises_is_a_finding_at_its_line(run, models):
    code, out, err = run("check", f"{models}/models.py:raises")

    assert (code, err) == (1, "")
    assert "error[FE102]" in out
    assert "RuntimeError: no such checkpoint" in out


# Proof 7 of issue 2: what is wrong, the arguments, and the culprit that the line names.
BAD_CALLS = {
    "missing file": (["{at}/absent.py:factory"], "absent.py"),
    "missing factory": (["{at}/models.py:goood"], "goood"),
    "broken Python": (["{at}/syntax.py:factory"], "syntax.py"),
    "factory that returns no module": (["{at}/models.py:no_module"], "models.py:no_module"),
    "no source": (["models.py"], "'models.py'"),
    "missing config": (["hf:{at}/absent.json"], "absent.json"),
    "broken JSON": (["hf:{at}/broken.json"], "broken.json"),
    "unknown model type": (["hf:gpt22"], "'gpt22'"),
    "unknown target": (["{at}/models.py:good", "--target", "H10"], "'H10'"),
    "unknown dtype": (["{at}/models.py:good", "--dtype", "float7"], "'float7'"),
    "wrong input name": (["{at}/models.py:good", "--input", "inptu=float32[4,3]"], "inptu"),
    "wrong input rank": (["hf:vit", "--input", "pixel_values=float32[3,224,224]"], "pixel_values"),
    "wrong input rank of a factory": (["{at}/models.py:good", "--input", "input=float32[2,4,3]"], "'input'"),
    "broken input": (["{at}/models.py:good", "--input", "input=float32[4,"], "input=float32[4,"),
    "dynamic dimension of no input": (["{at}/models.py:good", "--dynamic", "inptu.0=1..4"], "inptu"),
    "dynamic dimension that is not there": (["{at}/models.py:good", "--dynamic", "input.5=1..4"], "input"),
    "device map that names no module": (["{at}/models.py:good", "--device-map", "fc9=cpu"], "'fc9'"),
    "missing device map": (["{at}/models.py:good", "--device-map", "{at}/absent.json"], "absent.json"),
    "broken device map": (["{at}/models.py:good", "--device-map", "{at}/map.json"], "map.json"),
    "fewer devices than the map": (
        ["{at}/models.py:good", "--target", "2xH100", "--device-map", "cuda:3"],
        "'cuda:3'",
    ),
}


@pytest.mark.parametrize(("arguments", "culprit"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_bad_call_is_one_line_that_names_the_culprit(run, models, arguments, culprit):
    code, out, err = run("check", *(argument.format(at=models) for argument in arguments))

    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert culprit in err


def test_inspect_prints_the_tree_of_a_model(run):
    code, out, err = run("inspect", f"{MLP}:hybrid", "--target", "cpu+H100")

    assert (code, err) == (0, "")
    assert "  fc1   Linear   33.0K  129.0 KiB  cpu\n" in out
    assert out.endswith("35.6K parameters, float32, 139.0 KiB: cpu 129.0 KiB, cuda:0 10.0 KiB\n")


def test_inspect_of_a_factory_that_raises_is_one_line(run, models):
    code, out, err = run("inspect", f"{models}/models.py:raises")

    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "RuntimeError: no such checkpoint" in err


@pytest.mark.slow
def test_the_streams_of_a_real_process(models):
    process = fakexport("check", f"{models}/models.py:talks", "--target", "H100", "--format", "json")

    assert process.returncode == 0
    assert json.loads(process.stdout)["is_clean"] is True
    assert process.stderr == "building\n"


def test_a_reader_that_leaves_is_no_error_of_ours():
    command = [sys.executable, "-m", "fakexport", "devices", "H100"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()  # long before the interpreter is up
        err = process.stderr.read()

    assert err == ""
    assert process.returncode == 141


def test_a_device_that_the_target_does_not_have(run, tmp_path):
    path = tmp_path / "moved.py"
    path.write_text(
        "import torch\n"
        "from torch import nn\n"
        "\n"
        "def factory():\n"
        "    model = nn.Linear(4, 4)\n"
        "    model.to('cuda')\n"
        "    return model, (torch.zeros(2, 4),)\n"
    )

    code, out, _ = run("check", f"{path}:factory", "--target", "cpu", "--target", "M2-Ultra")

    assert code == 1
    assert "error[FE505]: hard-coded device does not exist on the target" in out
    assert "moved.py:6" in out
    assert "cuda does not exist on this target" in out
