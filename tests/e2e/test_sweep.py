"""`fakexport sweep` and `sweep-compare` on real checks."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import chdir

import pytest

from tests.forked import run_module

pytestmark = pytest.mark.slow

MODELS = """
import os, torch
from torch import nn

class Branch(nn.Module):
    def forward(self, x):
        return x if BROKEN or x.sum() > 0 else -x

BROKEN = False
def fine(): return nn.Linear(3, 2), (torch.ones(1, 3),)
def branch(): return Branch(), (torch.ones(3),)
def aborts(): os.abort()
"""
ZOO = """
models: [models.py:fine, models.py:branch, models.py:missing, models.py:aborts]
"""


def fakexport(folder, *arguments):
    with chdir(folder):
        return run_module("fakexport", *arguments)


def test_a_sweep_is_killed_goes_on_and_is_compared(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "models.py").write_text(MODELS)
    (folder / "zoo.yaml").write_text(ZOO)
    run = tmp_path / "run.jsonl"
    arguments = ["sweep", str(folder / "zoo.yaml"), "-o", str(run), "--no-progress", "--jobs", "2"]
    first = subprocess.Popen([sys.executable, "-m", "fakexport", *arguments], cwd=tmp_path)
    end = time.monotonic() + 200
    while not run.exists() or run.read_bytes().count(b"\n") < 1:
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()

    refused = fakexport(tmp_path, *arguments)
    done = fakexport(tmp_path, *arguments, "--resume")

    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "4 checks: 1 exports, 1 fails, 1 refused, 1 crashes"
    records = [json.loads(line) for line in run.read_text().splitlines()]
    assert len({record["command"] for record in records}) == len(records) == 4
    assert {record["status"] for record in records if "branch" in record["command"]} == {"fails"}
    assert all("FE201" in record["reason"] for record in records if record["status"] == "fails")

    (folder / "models.py").write_text(MODELS.replace("BROKEN = False", "BROKEN = True"))
    later = tmp_path / "later.jsonl"
    fakexport(tmp_path, *arguments[:3], str(later), "--no-progress", "--shard", "2/4")
    compared = fakexport(tmp_path, "sweep-compare", str(run), str(later))

    assert later.read_text().count("\n") == 1
    assert compared.returncode == 1
    assert compared.stdout.splitlines()[-1] == "0 worse, 3 missing, 1 better, 0 new, 0 the same"


def test_the_answers_of_runtimes_are_a_table(tmp_path):
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "zoo.yaml").write_text(
        "models: [models.py:fine, models.py:branch]\nruntimes: [aoti, tensorrt]"
    )

    done = fakexport(tmp_path, "sweep", "zoo.yaml", "-o", "run.jsonl")

    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split() == ["aoti", "tensorrt", "check"])
    assert lines[at + 1].split()[:2] == ["taken", "taken"]
    assert lines[at + 2].split()[0] == "fakexport"


FRESH = """
import sys
assert "transformers" not in sys.modules, "transformers was imported for another source"
import torch
def linear(): return torch.nn.Linear(3, 2), (torch.ones(1, 3),)
"""


def test_a_line_of_a_sweep_is_what_the_command_says_alone(tmp_path):
    sources = ["hf:reformer", "fresh.py:linear"]
    (tmp_path / "fresh.py").write_text(FRESH)
    (tmp_path / "zoo.yaml").write_text(f"models: [{', '.join(sources)}]\ntargets: H100\ndtypes: bfloat16\n")

    fakexport(tmp_path, "sweep", "zoo.yaml", "-o", "run.jsonl")

    for line in (tmp_path / "run.jsonl").read_text().splitlines():
        found = json.loads(line)
        command = [sys.executable, "-m", *found["command"].split(), "--format", "json"]
        alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        reports = [json.loads(alone.stdout), found["report"]]
        for report in reports:
            del report["measured"]
        assert reports[0] == reports[1]
        assert (found["status"] == "exports") == (alone.returncode == 0)
        sources.remove(reports[0]["source"])
    assert not sources


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "absent.yaml", "-o", "run.jsonl"], "absent.yaml"),
        (["sweep", "zoo.yaml", "-o", "run.jsonl", "--shard", "5/4"], "expected I/N"),
        (["sweep-compare", "zoo.yaml", "zoo.yaml"], "cannot read this line as output of `fakexport sweep`"),
    ],
)
def test_bad_usage_is_one_line(tmp_path, arguments, message):
    (tmp_path / "zoo.yaml").write_text(ZOO)

    done = fakexport(tmp_path, *arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run.jsonl").exists()
