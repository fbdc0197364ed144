"""docs/trust.md: what of the user each command runs, and in which process."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

from fakexport.cli.app import app
from tests.command_line import fakexport
from tests.forked import run_python
from tests.hostile.test_projects_of_others import LLAMA

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

PAGE = (Path(__file__).parents[2] / "docs" / "trust.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \| ([^|]*?) *\|(?: ([^|]*?))? *\|$", PAGE, re.M)
ORDER = ("library", "import", "constructor", "forward", "script", "pickle", "code of the repository")
# Code of the user says here that it runs, and in which process.
NOTED = """
import os
def note(what):
    with open({marks!r}, "a") as file:
        file.write(f"{{what}},{{os.getpid()}}\\n")
"""
MODEL = """
import torch
note("import")
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        note("constructor")
        self.fc = torch.nn.Linear(3, 2)
    def forward(self, x):
        note("forward")
        return self.fc(x)
def model():
    return Model(), (torch.zeros(2, 3),)
def loaded():
    return Model()
"""
CONFIG = {**LLAMA, "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
ADAPTER = {
    "auto_mapping": {"base_model_class": "Model", "parent_library": "modeling"},
    "lora_alpha": 8,
    "peft_type": "LORA",
    "r": 4,
    "target_modules": ["q_proj"],
}
# The command in a process of which the test knows the number.
COMMAND = """
import os, sys
open({main!r}, "w").write(str(os.getpid()))
from fakexport.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Called:
    """What a pickle calls when it is read."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (self.code,)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With every file that the page names."""
    import torch

    safetensors = pytest.importorskip("safetensors.torch")
    pytest.importorskip("transformers")
    found = tmp_path_factory.mktemp("inputs")
    noted = NOTED.format(marks=str(found / "marks"))
    for place in (found, found / "project"):
        place.mkdir(exist_ok=True)
        (place / "model.py").write_text(noted + MODEL)
        (place / "library.py").write_text(f"{noted}note('library')\n")
        (place / "modeling.py").write_text(
            f"{noted}note('code of the repository')\nfrom transformers import LlamaForCausalLM as Model\n"
        )
        (place / "config.json").write_text(json.dumps(CONFIG))
    (found / "project" / "pyproject.toml").write_text(
        '[tool.fakexport]\nsources = ["model.py:model"]\nlibraries = ["library.py"]\n'
        "trust-remote-code = true\n"
    )
    (found / "script.py").write_text(f"{noted}note('script')\n")
    (found / "zoo.yaml").write_text("models: [model.py:model]\n")
    (found / "own.yaml").write_text("models: [{source: 'hf:config.json', trust-remote-code: true}]\n")
    (found / "adapter").mkdir()
    (found / "adapter" / "adapter_config.json").write_text(json.dumps(ADAPTER))
    weights = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}
    safetensors.save_file(weights, found / "weights.safetensors")
    safetensors.save_file({"x": torch.ones(2, 3)}, found / "inputs.safetensors")
    torch.save({**weights, "called": Called(f"{noted}note('pickle')")}, found / "pickled.bin")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(found)
        fakexport("export", "model.py:model", "-o", "model.pt2")
        fakexport("sweep", "zoo.yaml", "-o", "run.jsonl")
    return found


def what_runs(command: str, folder: Path) -> tuple[str, str]:
    """Run a command, and return the cells of its row."""
    marks, main = folder / "marks", folder / "main"
    marks.write_text("")
    place, _, arguments = command.rpartition("; ")
    here = folder / place.removeprefix("cd ") if place else folder
    for path in (*folder.glob("out.*"), *here.glob("fakexport.lock")):
        path.unlink()

    done = run_python(COMMAND.format(main=str(main)), *shlex.split(arguments), folder=here)

    is_refused = any(word in arguments for word in ("pickled", "generate"))
    assert done.returncode in ((2,) if is_refused else (0, 1)), done.stderr
    assert "FE001" not in done.stdout + done.stderr
    found = [line.split(",") for line in marks.read_text().splitlines()]
    ran = ", ".join(sorted({what for what, _ in found}, key=ORDER.index)) or "nothing"
    own = {number == main.read_text() for _, number in found}
    where = {frozenset(): "", frozenset({True}): "the command's own process"}
    return ran, where.get(frozenset(own), "both" if True in own else "another process")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "ran", "where"), ROWS, ids=[row[0] for row in ROWS])
def test_the_page_says_what_runs_and_where(command: str, ran: str, where: str, folder: Path) -> None:
    assert what_runs(command, folder) == (ran, where)


def test_the_page_has_every_command() -> None:
    named = {command.rpartition("; ")[2].split()[0] for command, _, _ in ROWS}

    assert named == {command.name for command in app.registered_commands}


def test_each_command_that_loads_libraries_has_a_line_with_code() -> None:
    with_code = {command.rpartition("; ")[2].split()[0] for command, ran, _ in ROWS if ran != "nothing"}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    loading = {
        name
        for name, command in commands.items()
        if any("--library" in parameter.opts for parameter in command.params)
    }

    assert loading
    assert loading <= with_code
