"""The runner of the proof: each result is written at once, and no failure ends the others."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu_proof import __main__ as runner
from benchmarks.gpu_proof import fidelity, smoke
from benchmarks.gpu_proof.parts import Part, run_in_turn, run_parts
from benchmarks.gpu_proof.run import Run
from benchmarks.gpu_proof.summary import is_all_right, read_results, summary

ROOT = Path(__file__).parents[3]
MODULE = "tests.unit.benchmarks.parts_without_torch"


@pytest.fixture
def run(tmp_path):
    return Run.in_folder(tmp_path, profile="H100-80GB", is_pretend=True)


def results(run):
    return {line["case"]: line for line in read_results(run.out / "results.jsonl")}


def test_a_failing_case_is_recorded_and_the_next_ones_run(run):
    names = ("raises", "dies", "works")

    run_parts(run, [Part(MODULE, name, name) for name in names], jobs=1)

    found = results(run)
    assert found["raises"]["error"] == "LookupError: no case is called raises"
    assert any("in raises" in line for line in found["raises"]["traceback"])
    assert found["dies"]["error"] == "the process ended with exit code -11"
    assert "the last words" in found["dies"]["output"]
    assert found["works"]["ok"] is True
    assert not is_all_right(run.out / "results.jsonl")


def test_a_limit_loses_nothing_that_was_found_before_it(run):
    begun = time.monotonic()
    parts = [Part(MODULE, "works", "first"), Part(MODULE, "sleeps", "long"), Part(MODULE, "works", "late")]

    run_parts(dataclasses.replace(run, deadline=time.time() + 3), parts, jobs=1)

    lines = read_results(run.out / "results.jsonl")
    assert time.monotonic() - begun < 30
    assert [(line["case"], line.get("ok"), line.get("error", "")[:10]) for line in lines] == [
        ("first", True, ""), ("long", True, ""), ("long", None, "stopped af"), ("late", None, "did not ru"),
    ]  # fmt: skip


def test_one_part_at_a_time_has_the_gpu(run):
    run_in_turn(run, [Part(MODULE, "waits", name) for name in "abc"])

    found = [results(run)[name] for name in "abc"]
    assert all(one["ended"] <= other["begun"] for one, other in itertools.pairwise(found))


def test_the_gpu_is_hidden_from_emulated_captures_only(run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    real = dataclasses.replace(run, is_pretend=False)

    run_parts(real, [Part(MODULE, "works", "shown"), Part(MODULE, "works", "hidden", is_hidden=True)])

    found = results(run)
    assert (found["shown"]["is_gpu_hidden"], found["hidden"]["is_gpu_hidden"]) == (False, True)


def test_without_smoke_nothing_else_runs(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(smoke, "identify", lambda run: run)
    monkeypatch.setattr(smoke, "step", lambda run: ran.append("smoke"))

    code = runner.main(["--pretend", "--out", str(tmp_path), "--steps", "smoke", "memory"])

    assert (code, ran) == (3, ["smoke"])
    assert (tmp_path / "summary.md").read_text().startswith("no GPU")


def test_a_case_that_no_step_has_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        runner.main(["--pretend", "--out", str(tmp_path), "--cases", "vit", "vitt"])

    assert "no step has a case called vitt" in capsys.readouterr().err


def test_an_error_of_a_step_is_recorded(run, monkeypatch):
    def fails(run):
        raise RuntimeError("this step is broken")

    monkeypatch.setattr(smoke, "step", fails)
    monkeypatch.setattr(fidelity, "step", lambda run: run.record("fidelity", "model", ok=True))

    for name in ("smoke", "fidelity"):
        runner._step(run, name, 10)

    found = results(run)
    assert "this step is broken" in found["step"]["error"]
    assert found["model"]["ok"] is True


def test_names_of_outputs_do_not_count_where_stock_torch_is_compared(run):
    node = "%0 = aten.relu.default(%x) -> float32[2]{1} cuda:0"
    stock, own = [node, "output to_tuple.0 %0"], [node, "output last_hidden_state %0"]

    fidelity.record_comparison(run, "names", ("stock", "emulated"), stock, own)
    fidelity.record_comparison(run, "native", ("native", "emulated"), stock, own)
    fidelity.record_comparison(run, "device", ("stock", "emulated"), [node.replace("cuda:0", "cpu")], [node])
    fidelity.record_comparison(run, "failed", ("native", "emulated"), ["failed: A"], ["failed: A"])

    fidelity.record_comparison(
        run, "literals", ("stock", "emulated"), [node.replace("cuda:0", "cpu")], [node]
    )

    found = results(run)
    assert (found["literals"]["ok"], "moved" in found["literals"]["reason"]) == (None, True)
    assert [found[name]["ok"] for name in ("names", "native", "device", "failed")] == [
        True,
        False,
        False,
        False,
    ]
    assert not found["names"]["is_whole_equal"]


def test_a_summary_names_what_differs_and_skips_a_line_that_is_cut(run):
    run.record("smoke", "device", torch="2.11.0", device="NVIDIA H200")
    run.record("fidelity", "vit", ok=False, pair="native = emulated")
    run.record("fidelity", "bert", ok=True)
    with (run.out / "results.jsonl").open("a") as file:
        file.write('{"step": "fidel')

    text = summary(run.out / "results.jsonl")

    assert text.startswith("NVIDIA H200; torch 2.11.0")
    assert "| fidelity | 1 | 1 | 0 |  |" in text
    assert "- fidelity vit: pair=native = emulated" in text


def pretended(out, *steps):
    options = ["--pretend", "--limit", "0", "--out", str(out), "--steps", *steps]
    return [sys.executable, "-m", "benchmarks.gpu_proof", *options]


@pytest.mark.slow
def test_a_run_that_is_ended_keeps_its_results_and_leaves_no_process(tmp_path):
    found = tmp_path / "results.jsonl"

    with subprocess.Popen(pretended(tmp_path, "attention"), cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 200
        while not (found.exists() and list((tmp_path / "work" / "logs").glob("attention-*"))):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.terminate()
        code = process.wait(30)

    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    lines = read_results(found)
    assert code == 143
    assert str(tmp_path) not in listed
    assert lines[0]["case"] == "device"
    assert {line["error"] for line in lines if line["step"] == "attention"} <= {
        "stopped with the run", "did not run: no time was left"
    }  # fmt: skip
    assert (tmp_path / "summary.md").exists()


@pytest.mark.slow
def test_a_run_without_a_gpu_captures_a_model_both_ways(tmp_path):

    done = subprocess.run(
        pretended(tmp_path, "smoke", "facts"), cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    lines = read_results(tmp_path / "results.jsonl")
    (compared,) = (line for line in lines if line.get("pair") == "stock = emulated")
    (answers,) = (line["emulated"] for line in lines if line["case"] == "answers")
    assert (compared["case"], compared["ok"]) == ("mlp-gpu", True)
    assert json.loads(answers["torch.cuda.get_device_name(0)"].replace("'", '"')) == "NVIDIA H100 80GB HBM3"
