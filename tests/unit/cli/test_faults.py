"""What goes wrong becomes one line and an exit code, or diagnostic FE001."""

import json
import signal
import sys
from contextlib import nullcontext

import pytest

from fakexport.cli import main
from fakexport.cli.faults import internal_fault, usage_fault
from fakexport.emulation.devices import Topology
from fakexport.error import FakexportError, InvalidType, InvalidValue
from fakexport.files.processes import run_forked
from fakexport.models.sources import SourceError
from tests.unit.cli.checked import install_check


def raised_by(error: BaseException):
    def check(*_, **__):
        raise error

    return check


def bad_topology(*_, **__):
    Topology.parse("H10")


def missing_file(*_, **__):
    open("/absent/model.json")  # noqa: PTH123, SIM115


def missing_torch(*_, **__):
    raise ModuleNotFoundError("No module named 'torch'", name="torch")


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (bad_topology, "error: unknown device 'H10': did you mean H100"),
        (raised_by(SourceError("no file\n   model.py")), "error: no file model.py\n"),
        (raised_by(SourceError("a\x1b[2J")), "error: a\\x1b[2J\n"),
        (missing_file, "error: /absent/model.json: No such file or directory\n"),
        (missing_torch, "error: torch is not installed: pip install torch\n"),
        (raised_by(MemoryError()), "error: out of memory\n"),
        (raised_by(SystemExit("bye")), "error: the model's code called sys.exit('bye'): remove this call\n"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--format", "json"]])
def test_a_bad_call_is_one_line_and_exit_code_2(monkeypatch, capsys, check, line, options):
    install_check(monkeypatch, check)

    code = main(["check", "m:f", "--no-progress", *options])

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["check"],
            "error: no SOURCE given, and no pyproject.toml in this folder or its parents lists `sources` in "
            "[tool.fakexport]",
        ),
        (["chek"], "error: No such command 'chek'. Did you mean 'check'?; see `fakexport --help`\n"),
        (["check", "m:f", "--format", "xml"], "error: Invalid value for '--format'"),
        (["check", "m:f", "--fast"], "error: No such option: --fast"),
        (["check", "m:f", "--target"], "error: Option '--target' requires an argument"),
        (["explain", "FE999"], "error: unknown rule 'FE999'; the nearest are FE"),
        (["devices", "H10"], "error: unknown device 'H10': did you mean H100"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(capsys, arguments, line):
    code = main(arguments)

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_debug_shows_the_traceback_before_the_line(monkeypatch, capsys):
    install_check(monkeypatch, bad_topology)

    code = main(["check", "m:f", "--debug"])

    first, *_, last = capsys.readouterr().err.splitlines()
    assert code == 2
    assert first == "Traceback (most recent call last):"
    assert last.startswith("error: unknown device 'H10'")


def fault_of_torch(*_, **__):
    json.loads("{")


def fault_of_ours(*_, **__):
    Topology.parse(None)  # AttributeError within fakexport


def slip_of_ours(*_, **__):
    Topology(1, 2).device_of("cpu")


@pytest.mark.parametrize(
    ("check", "name"),
    [
        (fault_of_torch, "JSONDecodeError"),
        (fault_of_ours, "AttributeError"),
        (slip_of_ours, "AttributeError"),
        (raised_by(RuntimeError("boom")), "RuntimeError: boom"),
        (raised_by(ValueError("not ours")), "ValueError: not ours"),
        (raised_by(ModuleNotFoundError("No module named 'json5'", name="json5")), "No module named 'json5'"),
    ],
)
def test_a_fault_of_our_own_is_diagnostic_fe001_with_what_to_report(monkeypatch, capsys, check, name):
    install_check(monkeypatch, check)

    code = main(["check", "m y.py:f", "--no-progress"])

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error[FE001]: fakexport itself failed\n  --> ")
    assert name in err
    assert "= note: the command was: fakexport check 'm y.py:f' --no-progress\n" in err
    assert f"python {sys.version.split()[0]}" in err
    assert "torch 2." in err
    assert "Traceback" not in err


def test_a_fault_in_a_forked_process_is_placed_where_it_was_raised():
    def fault(send):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError) as caught:
        run_forked([fault], jobs=1, on_message=lambda index, message: None)
    text = internal_fault(caught.value, ())

    assert f"{__file__}:{fault.__code__.co_firstlineno + 1}  (fault)" in text


@pytest.mark.parametrize("error", [FakexportError, InvalidValue, InvalidType])
def test_what_is_raised_on_purpose_is_the_callers_fault(error):
    assert usage_fault(error("bad\nspec")) == "bad spec"


IN_OUR_CODE = {
    "a bare raise statement": "raise ValueError('bad spec')",
    "a slip": "for x in None: pass",
    "a slip in a with block": "with nullcontext():\n  len(5)",
    "an error of the standard library": "json.loads('{')",
}


@pytest.mark.parametrize("code", IN_OUR_CODE.values(), ids=IN_OUR_CODE)
def test_what_is_not_raised_on_purpose_is_a_fault_of_our_own(code):
    """`error: 'NoneType' object is not iterable` would be a poor answer to a good call."""
    ours = {"__name__": "fakexport.emulation.fake.sample", "nullcontext": nullcontext, "json": json}

    with pytest.raises((ValueError, TypeError)) as raised:
        exec(code, ours)

    assert usage_fault(raised.value) is None


def test_an_interrupt_is_exit_code_130(monkeypatch, capsys):
    install_check(monkeypatch, raised_by(KeyboardInterrupt()))

    code = main(["check", "m:f", "--no-progress"])

    assert code == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")


def test_sigterm_is_one_line_after_what_was_half_done_is_cleared_away(monkeypatch, capsys):
    cleared = []

    def terminated(*_, **__):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleared.append(True)

    before = signal.getsignal(signal.SIGTERM)
    install_check(monkeypatch, terminated)

    code = main(["check", "m:f", "--no-progress"])

    assert (code, cleared) == (143, [True])
    assert capsys.readouterr() == ("", "error: terminated\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_that_is_ignored_is_ignored_still(monkeypatch, capsys):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    install_check(monkeypatch, raised_by(MemoryError()))
    try:
        main(["check", "m:f", "--no-progress"])

        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
