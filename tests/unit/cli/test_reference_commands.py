"""The commands that need no model: explain, devices, inspect's text, --version, --help."""

import re
import subprocess
import sys

import pytest

import fakexport
from fakexport.cli import main
from fakexport.emulation.devices import load_profiles, profile_named
from fakexport.report import explain, explain_all, render_device, render_devices, render_modules
from fakexport.rules import all_rules
from tests.unit.cli.checked import install_check
from tests.unit.report.test_render_modules import ROOT


@pytest.mark.parametrize("code", ["FE201", "fe201", "data-dependent-branch"])
def test_explain_prints_the_page_of_a_rule(capsys, code):
    assert main(["explain", code]) == 0

    assert capsys.readouterr() == (explain("FE201"), "")


def test_explain_alone_lists_every_rule(capsys):
    assert main(["explain"]) == 0

    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:]] == [rule.code for rule in all_rules()]


def test_explain_all_prints_every_page(capsys):
    assert main(["explain", "--all"]) == 0

    assert capsys.readouterr() == (explain_all(), "")


def test_a_code_and_all_codes_are_not_asked_for_at_once(capsys):
    assert main(["explain", "FE201", "--all"]) == 2

    assert capsys.readouterr().err.startswith("error: Invalid value: pass a code or --all")


def test_devices_prints_the_table(capsys):
    assert main(["devices"]) == 0

    assert capsys.readouterr() == (render_devices(load_profiles().values(), width=100), "")


def test_devices_with_a_name_prints_that_one(capsys):
    assert main(["devices", "h100"]) == 0

    assert capsys.readouterr() == (render_device(profile_named("H100-80GB")), "")


def test_inspect_prints_the_tree(monkeypatch, capsys):
    monkeypatch.setenv("FAKEXPORT_IN_PROCESS", "1")
    calls = {}

    def inspect(source, **options):
        calls.update(options, source=source)
        return ROOT

    install_check(monkeypatch, lambda: None, inspect=inspect)

    code = main(["inspect", "hf:x", "--target", "8xH100", "--device-map", "balanced", "--dtype", "float16"])

    assert code == 0
    assert calls == {
        "source": "hf:x",
        "topology": "8xH100",
        "device_map": "balanced",
        "dtype": "float16",
        "parallel": None,
        "rank": None,
        "trust_remote_code": False,
    }
    assert capsys.readouterr() == (render_modules(ROOT), "")


def test_version_names_fakexport_torch_and_python(capsys):
    assert main(["--version"]) == 0

    out = capsys.readouterr().out
    assert re.fullmatch(rf"fakexport {fakexport.__version__} \(torch 2\.\S+, Python 3\.\S+\)\n", out)


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"], ["devices", "--help"]])
def test_help_is_data(capsys, arguments):
    assert main(arguments) == 0

    out, err = capsys.readouterr()
    assert out.startswith("Usage: fakexport")
    assert err == ""


def test_without_a_command_help_goes_to_stderr_and_the_call_is_at_fault(capsys):
    assert main([]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: fakexport")


def test_help_imports_no_more_than_it_needs():
    probe = (
        "import sys; from fakexport.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    )

    process = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )

    slow = {
        "torch",
        "rich",
        "fakexport.report",
        "fakexport.rules",
        "fakexport.emulation.devices",
        "importlib.metadata",
    }
    assert not slow & set(process.stderr.split())
