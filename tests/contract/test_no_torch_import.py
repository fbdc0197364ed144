"""What must answer at once does not import torch or a model library."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fakexport.checking.sweep import SweepRecord
from fakexport.checking.sweep.run_file import RunFile
from fakexport.cli.app import app
from fakexport.models import PACKAGES

HEAVY = ("torch", "sympy", *dict.fromkeys((*PACKAGES, "diffusers", "accelerate", "numpy", "safetensors")))
LIGHT = (
    "--version",
    "explain",
    "explain FE201",
    "explain --all",
    "devices",
    "devices H100",
    "verify-weights model.pt2 model.safetensors",
    "inspect model.pt2",
    "inspect dynamic.pt2",
    "inspect stock.pt2 --format json",
    "inspect custom.pt2",
    "bundle one=model.pt2 other=dynamic.pt2 -o bundle.pt2",
    "bundle one=bound.pt2 other=bound.pt2 -o bundle.pt2",
    "diff dynamic.pt2 dynamic.pt2",
    "diff model.pt2 model.pt2 --html difference.html",
    "sweep-compare run.jsonl run.jsonl",
    "sweep-report run.jsonl -o page.html",
)
COMMANDS = [command.name for command in app.registered_commands]
MODEL = """
import torch

def factory():
    return torch.nn.Linear(4, 2).eval(), (torch.zeros(1, 4),)
"""


@torch.library.custom_op("of_start_up::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


twice.register_fake(torch.empty_like)


class CallsALibrary(torch.nn.Module):
    def forward(self, x):
        return torch.ops.of_start_up.twice(x)


def heavy_imports(code: str) -> list[str]:
    """The heavy packages that a fresh interpreter has loaded after running `code`."""
    report = f"import sys; print('loaded:', *[name for name in {HEAVY} if name in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()[-1].split()[1:]


def test_importing_the_package_imports_no_torch():
    assert heavy_imports("import fakexport") == []


def test_listing_the_public_names_imports_no_torch():
    assert heavy_imports("import fakexport; dir(fakexport); fakexport.__version__") == []


@pytest.mark.parametrize("room", ["rules.diagnostics", "rules", "report"])
def test_the_common_rooms_import_no_torch(room):
    assert heavy_imports(f"import fakexport.{room}") == []


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a model, its archive and weights, and a run of a sweep."""
    import fakexport as fe

    folder = tmp_path_factory.mktemp("files")
    (folder / "model.py").write_text(MODEL)
    fe.save(fe.export(f"{folder}/model.py:factory"), folder / "model.pt2")
    fe.save(fe.export(f"{folder}/model.py:factory", dynamic_shapes="auto"), folder / "dynamic.pt2")
    batch = {0: torch.export.Dim.AUTO}
    stock = torch.export.export(torch.nn.Linear(4, 2), (torch.zeros(3, 4),), dynamic_shapes=(batch,))
    torch.export.save(stock, folder / "stock.pt2")
    fe.save(torch.export.export(torch.nn.Linear(4, 2), (torch.zeros(3, 4),)), folder / "bound.pt2")
    fe.save(torch.export.export(CallsALibrary(), (torch.ones(3),)), folder / "custom.pt2")
    save_file({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, folder / "model.safetensors")
    with closing(RunFile(folder / "run.jsonl", resume=False)) as run:
        run.add(
            SweepRecord(
                command="fakexport check a",
                status="exports",
                reason="",
                seconds=1.0,
                peak_bytes=1,
                report=None,
            )
        )
    return folder


def after_commands(*commands: str, folder: Path) -> list[str]:
    return heavy_imports(f"""
import os
from fakexport.cli import main
os.chdir({str(folder)!r})
for command in {commands}:
    assert main(command.split()) == 0, command
""")


def test_help_imports_no_torch(tmp_path):
    assert after_commands("--help", *(f"{name} --help" for name in COMMANDS), folder=tmp_path) == []


def test_a_command_that_needs_no_tensor_imports_no_torch(files):
    loaded = after_commands(*LIGHT, folder=files)

    assert loaded == [], [command for command in LIGHT if after_commands(command, folder=files)]


@pytest.mark.parametrize(
    "command",
    [
        "inspect model.py:factory",
        pytest.param("verify-weights model.py:factory model.safetensors", marks=pytest.mark.slow),
    ],
)
def test_the_process_that_prints_leaves_torch_to_its_child(command, files):
    """Importing it in both processes would double the time."""
    assert after_commands(command, folder=files) == []


def test_commands_that_read_an_archive_import_no_model_library(files):
    """They decode the program with the symbols and operators of torch, so they need torch itself."""
    found = after_commands(
        "source model.pt2",
        "view model.pt2 -o graph.json",
        "retarget model.pt2 --to cpu=cuda:0 -o moved.pt2",
        "bind model.pt2 model.safetensors -o bound.pt2",
        folder=files,
    )

    assert set(found) <= {"torch", "sympy", "numpy"}


@pytest.mark.parametrize("module", ["archive.manifest_json", "files.container"])
def test_a_hostile_archive_meets_no_torch(module):
    assert heavy_imports(f"import fakexport.{module}") == []


def test_the_probe_sees_a_heavy_import():
    assert heavy_imports("import safetensors") == ["safetensors"]
