"""Color: where there is some, and that it changes nothing else."""

import re
import sys
from dataclasses import replace

import pytest

from fakexport.cli import main
from fakexport.report import json_text, render_report, to_dict
from fakexport.rules.diagnostics import Diagnostic
from tests.unit.cli.checked import install_check
from tests.unit.report.sample_reports import full_report

ESCAPE = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def checked(monkeypatch):
    """`check` of a model whose report has everything; no variable decides on color."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    install_check(monkeypatch, lambda *_, **__: full_report())
    return monkeypatch


def output(capsys, *arguments, fails=1):
    assert main([*arguments, "--no-progress"]) == fails
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("is_terminal", "variables", "options", "is_colored"),
    [
        (False, {}, [], False),
        (True, {}, [], True),
        (True, {"NO_COLOR": "1"}, [], False),
        (True, {"NO_COLOR": ""}, [], True),
        (False, {"FORCE_COLOR": "1"}, [], True),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, [], False),
        (True, {"TERM": "dumb"}, [], False),
        (False, {"NO_COLOR": "1"}, ["--color", "always"], True),
        (True, {"FORCE_COLOR": "1"}, ["--color", "never"], False),
        (True, {}, ["--color", "auto"], True),
    ],
)
def test_who_decides_on_color(is_terminal, variables, options, is_colored, checked, capsys):
    for name, value in variables.items():
        checked.setenv(name, value)
    checked.setattr(sys.stdout, "isatty", lambda: is_terminal)
    checked.setenv("COLUMNS", "100")

    text = output(capsys, *options, "check", "m:f")

    assert bool(ESCAPE.search(text)) is is_colored
    assert ESCAPE.sub("", text) == render_report(full_report())


def test_what_stands_out(checked, capsys):
    text = output(capsys, "--color", "always", "check", "m:f")

    colored = re.findall(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", text)
    assert {("1;31", "error[FE201]"), ("1;33", "warning[FE503]"), ("1;34", "-->")} <= set(colored)
    assert {("1;32", "exports"), ("1;31", "fails at capture"), ("1;32", "fix")} <= set(colored)
    assert ("1", "2 of 3 targets export; 1 error, 1 warning") in colored


@pytest.mark.parametrize("output_format", ["json", "github"])
def test_what_programs_read_is_never_colored(output_format, checked, capsys):
    text = output(capsys, "--color", "always", "check", "m:f", "--format", output_format)

    assert "\x1b" not in text
    if output_format == "json":
        assert text == json_text(to_dict(full_report()))


def test_the_line_of_an_error_is_colored_as_the_report_is(checked, capsys):
    main(["--color", "always", "devices", "H10"])
    main(["devices", "H10"])

    first, second = capsys.readouterr().err.splitlines()
    assert first == second.replace("error", "\x1b[1;31merror\x1b[0m", 1)


def test_escapes_of_a_model_are_shown_and_do_not_color(checked, capsys):
    found = Diagnostic("FE201", "error", "branch\x1b[31m on data")
    install_check(checked, lambda *_, **__: replace(full_report(), diagnostics=(found,)))

    text = output(capsys, "--color", "always", "check", "m:f")

    assert "\x1b[31m" not in text
    assert "branch\\x1b[31m on data" in text
