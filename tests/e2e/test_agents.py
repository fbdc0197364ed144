"""examples/agents/AGENTS.md, followed step by step: an agent repairs a model that does not export."""

import json
import runpy
import subprocess

import pytest
import torch

from tests.contract.source_tree import ROOT
from tests.e2e.console_pages import AGENT_MODEL, Command, File, steps
from tests.shell_command import fakexport_command

PAGE = (ROOT / "examples" / "agents" / "AGENTS.md").read_text(encoding="utf-8")
CHECK, APPLY, EXPLAIN = [step for step in steps(PAGE) if isinstance(step, Command)]
(SCRIPT,) = [step for step in steps(PAGE) if isinstance(step, File)]
# What an agent writes for what `apply_fixes.py` leaves, after it has read the explanation of the code.
BRANCH = "        if scores.max() > 50:\n            scores = scores / 10\n        return scores\n"
BY_HAND = {
    "FE201": (BRANCH, "        return torch.where(scores.max() > 50, scores / 10, scores)\n", "torch.where")
}
MOST_ROUNDS = 4


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Runs a command of the page in a folder with the model, and returns its exit code and its output."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    (tmp_path / "model.py").write_text(AGENT_MODEL)

    def run(command):
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    with fakexport_command(tools / "fakexport"):
        yield run


def results(path):
    torch.manual_seed(0)
    model, _ = runpy.run_path(str(path))["factory"]()
    return model(torch.arange(32).reshape(2, 16)), model(torch.zeros(3, 8, dtype=torch.int64))


def test_the_loop_ends_with_a_model_that_exports_and_computes_the_same(shell, tmp_path):
    SCRIPT.write(tmp_path)
    model = tmp_path / "model.py"
    before, seen = results(model), []

    for _ in range(MOST_ROUNDS):
        code, said = shell(CHECK.text)
        assert code in (0, 1), said
        if code == 0:
            break
        code, said = shell(APPLY.text.replace("python", "python3"))
        assert code == 0, said
        left = [line.split(": ")[1] for line in said.splitlines() if ": FE" in line]
        seen.append((f"{model}: 1 fixed" in said, left))
        for found in left:
            code, explanation = shell(EXPLAIN.text.replace("FE201", found))
            old, new, advice = BY_HAND[found]
            assert code == 0
            assert advice in explanation
            model.write_text(model.read_text().replace(old, new))

    assert seen == [(True, ["FE201"])]
    assert "device=ids.device" in model.read_text()
    assert all(map(torch.equal, before, results(model)))


def test_the_script_applies_several_edits_of_a_line_and_of_several_lines(tmp_path, monkeypatch):
    """From the last to the first, so that an edit does not move the place of another."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = one(two(),\n        three())  # é\ny = 4\n", encoding="utf-8")

    def change(line, column, end_line, end_column, text):
        place = {"line": line, "column": column, "end_line": end_line, "end_column": end_column}
        return {"changes": [{"edits": [{"path": "a.py", **place, "text": text}]}], "is_verified": True}

    changes = [change(1, 9, 2, 16, "2,\n    3"), change(1, 1, 1, 2, "z"), change(3, 5, 3, 6, "5")]
    found = [{"fix": fix, "severity": "error", "labels": []} for fix in changes]
    (tmp_path / "report.json").write_text(json.dumps({"diagnostics": found}))
    SCRIPT.write(tmp_path)

    runpy.run_path("apply_fixes.py")

    assert (tmp_path / "a.py").read_text(encoding="utf-8") == "z = one(2,\n    3)  # é\ny = 5\n"
