"""A sweep with processes that do what a check could do to it."""

import json
from contextlib import closing

import pytest

from fakexport.checking.sweep import RunFile, Sweep, SweepItem, compare_runs, read_run, run_sweep
from fakexport.checking.sweep.run_file import RunFileError
from fakexport.files.processes import Limits

# Stands for `fakexport.cli.limited_command`: the name of the source is what becomes of it.
_PART = """
import json, os, sys, time
_, alive, _, _, source, *options = sys.argv
open("ran", "a").write(source + "\\n")
if source == "aborts": os.abort()
if source == "explains": print("terminate called", file=sys.stderr, flush=True); os.abort()
if source == "sleeps": time.sleep(100)
if source == "grows": held = b"x" * 2**28; time.sleep(100)
if source == "refused": sys.exit("error: no such model")  # exit code 1 and no report
if source == "usage": print("error: no such model", file=sys.stderr); sys.exit(2)
if source == "fault": print("error[FE001]: internal error\\n  = note: more", file=sys.stderr); sys.exit(2)
if source == "stops":
    seconds = options[options.index("--timeout") + 1]
    print(f"error: stopped after {seconds} s: [1/1] cpu: trace, layers.3", file=sys.stderr)
    sys.exit(124)
if source == "silent": sys.exit(0)
error = {"code": "FE201", "severity": "error", "message": "data-dependent branch"}
found = [error] if source == "fails" else []
print(json.dumps({"is_clean": not found, "diagnostics": found}))
sys.exit(bool(found))
"""
_EXPECTED = {
    "exports": ("exports", ""),
    "fails": ("fails", "FE201: data-dependent branch"),
    "usage": ("refused", "error: no such model"),
    "refused": ("crashes", "exit code 1: error: no such model"),
    "fault": ("crashes", "error[FE001]: internal error"),
    "stops": ("out of time", "stopped after 5 s: [1/1] cpu: trace, layers.3"),
    "silent": ("crashes", "exit code 0: no output"),
    "aborts": ("crashes", "killed by SIGABRT"),
    "explains": ("crashes", "killed by SIGABRT; last output: terminate called"),
    "sleeps": ("out of time", "killed after 8 s"),
    "grows": ("out of memory", "killed at 134,217,728 bytes of resident memory"),
}


@pytest.fixture
def sweep_of(tmp_path, monkeypatch):
    (tmp_path / "part.py").write_text(_PART)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def made(sources, imports=None):
        items = [SweepItem(source=source) for source in sources]
        return Sweep(items, Limits(5, 2**27), tmp_path, "part", jobs=2, imports=imports or {})

    return made


def run(sweep, path, *, resume=False, on_done=None, on_cold=None):
    with closing(RunFile(path, resume=resume)) as file:
        run_sweep(sweep, file, on_done, on_cold)
    return read_run(path)


def test_whatever_becomes_of_a_check_is_a_line(sweep_of, tmp_path):
    tallies = []

    found = run(sweep_of(_EXPECTED), tmp_path / "run.jsonl", on_done=tallies.append)

    outcomes = {record.command.split()[2]: (record.status, record.reason) for record in found.values()}
    assert outcomes == _EXPECTED
    outputs = {record.command.split()[2]: record.output for record in found.values() if record.output}
    assert outputs == {
        "refused": "error: no such model\n",
        "fault": "error[FE001]: internal error\n  = note: more\n",
        "explains": "terminate called\n",
    }
    assert [tally.done for tally in tallies] == list(range(1, 12))
    assert (tallies[-1].total, tallies[-1].bad, tallies[-1].seconds_left) == (11, 10, 0)


@pytest.mark.parametrize(
    ("module", "reasons"),
    [("fractions", []), ("absent_module", ["the modules absent_module cannot be imported"])],
)
def test_checks_that_start_with_their_imports(sweep_of, tmp_path, module, reasons):
    told = []

    found = run(sweep_of(_EXPECTED, {"": [module]}), tmp_path / "run.jsonl", on_cold=told.append)

    outcomes = {record.command.split()[2]: (record.status, record.reason) for record in found.values()}
    assert outcomes == _EXPECTED
    assert [reason.startswith(expected) for reason, expected in zip(told, reasons, strict=True)] == [
        True for _ in reasons
    ]


def test_a_sweep_that_was_killed_goes_on(sweep_of, tmp_path):
    path = tmp_path / "run.jsonl"
    run(sweep_of(["exports", "fails"]), path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:20])  # Killed while it wrote the second line.
    (tmp_path / "ran").unlink()

    found = run(sweep_of(["exports", "fails", "usage"]), path, resume=True)

    left = {"exports", "fails"} - {json.loads(lines[0])["command"].split()[2]}
    assert set((tmp_path / "ran").read_text().split()) == {*left, "usage"}
    assert sorted(record.status for record in found.values()) == ["exports", "fails", "refused"]


def test_an_error_ends_the_checks_that_run(sweep_of, tmp_path):
    def interrupt(tally):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(sweep_of(["exports", "sleeps", "sleeps2", "exports2"]), tmp_path / "run.jsonl", on_done=interrupt)

    assert len(read_run(tmp_path / "run.jsonl")) == 1


def test_a_file_is_not_overwritten(sweep_of, tmp_path):
    path = tmp_path / "run.jsonl"
    run(sweep_of(["exports"]), path)

    with pytest.raises(RunFileError, match="--resume"):
        RunFile(path, resume=False)


@pytest.mark.parametrize(
    "content", [b"{}\n", b"[]\n", b"x\n", b'{"schema":"fakexport.sweep/1"}\n', b'{"schema":"y"}\n']
)
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)

    with pytest.raises(RunFileError):
        RunFile(path, resume=True)

    assert path.read_bytes() == content


def test_what_got_worse(sweep_of, tmp_path):
    before = run(sweep_of(["exports", "fails", "usage", "fault"]), tmp_path / "before.jsonl")
    after = dict(before)
    names = {name.split()[2]: name for name in before}
    fails = before[names["fails"]]
    after[names["exports"]] = fails
    after[names["usage"]] = before[names["exports"]]
    del after[names["fault"]]
    after["fakexport check another"] = fails

    found = compare_runs(before, after)

    assert [change.command for change in found.worse] == [names["exports"]]
    assert [change.command for change in found.missing] == [names["fault"]]
    assert [change.command for change in found.better] == [names["usage"]]
    assert [change.command for change in found.new] == ["fakexport check another"]
    assert (found.same, found.is_worse) == (1, True)
    assert not compare_runs(before, before).is_worse
