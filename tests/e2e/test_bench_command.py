"""`fakexport bench` as a user runs it."""

import json

import pytest

from fakexport.cli import main
from fakexport.deploy.benchmark.modes import MODES
from tests.command_line import fakexport
from tests.contract.source_tree import ROOT

MODELS = ROOT / "tests" / "unit" / "deploy" / "benchmark" / "bench_models.py"


@pytest.mark.slow
@pytest.mark.alone
def test_a_mode_that_dies_is_a_cell(tmp_path):
    chart = tmp_path / "chart.svg"

    done = fakexport(
        *("bench", f"{MODELS}:killed", "--modes", "torchscript-trace,eager", "--threads", 1),
        *("--repeat", 3, "--chart", chart, "--dynamic", "x.0"),
    )

    assert "torchscript-trace cannot be exported: the process was killed by SIGKILL" in done.stdout
    assert "1 of 2 modes match eager up to rounding" in done.stdout
    assert "1 thread\n" in done.stdout
    assert done.stderr == ""
    assert b"not captured" in chart.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--modes", "eager,tensorrt"], "unknown mode 'tensorrt'"),
        (["--chart", "chart.pdf"], "a chart must be a .png or .svg file"),
        (["--library", "missing.so"], "missing.so: no such file"),
    ],
)
def test_a_wrong_call_is_one_line(arguments, reason, capsys):
    code = main(["bench", f"{MODELS}:mlp", "--no-progress", *arguments])

    out, err = capsys.readouterr()
    assert code == 2
    assert reason in err
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.slow
@pytest.mark.alone
def test_a_model_that_does_not_run_is_one_line():
    done = fakexport("bench", f"{MODELS}:fails", "--no-progress", code=2)

    assert (
        done.stderr
        == f"error: eager: {MODELS}:fails does not run in eager mode: RuntimeError: no such luck\n"
    )


@pytest.mark.slow
@pytest.mark.alone
def test_every_mode_has_its_row():
    done = fakexport(
        *("bench", f"{MODELS}:mlp", "--dynamic", "x.0=2..64", "--threads", 1, "--repeat", 3),
        *("--format", "json", "--no-progress"),
    )

    found = json.loads(done.stdout)
    rows = {row["mode"]: row for row in found["modes"]}
    assert list(rows) == list(MODES)
    for row in rows.values():
        assert row["failures"] == [], row
        assert row["is_equal"], row
        assert row["keeps_dynamic"], row
    assert {name for name, row in rows.items() if row["needs_code"]} == {"eager", "weights"}
    assert all(figures["ratio"] for figures in found["measured"]["modes"])
