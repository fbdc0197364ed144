"""Packages that add sources, runtimes, profiles and rules by entry points: the example, installed by pip."""

import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.contract.source_tree import ROOT
from tests.forked import run_python

EXAMPLE = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which pip installed a copy of the example: a build writes into its folder."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "plugin")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        *options,
        "--target",
        folder / "site",
        folder / "plugin",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture
def fakexport(tmp_path):
    """Runs a command of fakexport with a folder of packages, and returns its exit code and its output."""

    def run(site, *arguments):
        code = f"import sys; sys.path.append({str(site)!r}); from fakexport.cli import main; sys.exit(main())"
        done = run_python(code, *arguments, folder=tmp_path)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def package(tmp_path):
    """Makes a package with one entry point, as an installer leaves it."""

    def made(group, value, **files):
        site = tmp_path / "site"
        (site / "broken").mkdir(parents=True)
        (site / "broken" / "__init__.py").touch()
        for name, text in files.items():
            (site / "broken" / name.replace("_", ".")).write_text(text)
        about = site / "broken-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[fakexport.{group}]\nbad = {value}\n")
        return site

    return made


def test_a_check_uses_the_source_the_profile_and_the_rule_of_a_package(installed, fakexport):
    code, said = fakexport(installed, "check", "acme:small", "--target", "ACME-1")

    assert code == 0, said
    assert "ACME-1  exports  cuda:0" in said
    assert "warning[ACME001]: operator runs on the host\n    = note: 1 calls of tanh" in said


def test_a_text_that_a_source_does_not_know_is_an_error_at_the_line_of_the_package(installed, fakexport):
    code, said = fakexport(installed, "check", "acme:none")

    assert code == 1
    assert "ValueError: ACME has no model 'none'; it has small, large" in said


def test_the_reference_commands_list_what_a_package_adds(installed, fakexport):
    code, said = fakexport(installed, "devices", "acme-1")
    assert code == 0
    assert "ACME One 96GB" in said

    code, said = fakexport(installed, "devices")
    assert "ACME-1" in said

    code, said = fakexport(installed, "explain", "ACME001")
    assert code == 0
    assert "Use ReLU" in said
    assert "ACME001" in fakexport(installed, "explain")[1]


def test_a_program_is_compiled_and_run_by_the_runtime_of_a_package(installed, fakexport, tmp_path):
    subprocess.run([sys.executable, ROOT / "examples" / "mlp.py"], cwd=tmp_path, check=True)
    source = f"{ROOT}/examples/mlp.py:factory"
    assert fakexport(installed, "export", source, "--dynamic", "x.0=2..64", "-o", "mlp.pt2")[0] == 0

    code, said = fakexport(installed, "compile", "mlp.pt2", "--to", "acme", "-o", "mlp.acme")
    assert (code, "acme needs the weights" in said) == (2, True)

    compiled = ["compile", "mlp.pt2", "mlp.safetensors", "--to"]
    code, said = fakexport(installed, *compiled, "nothing", "-o", "mlp.nothing")
    assert (code, "formats are aoti, cpp-project, executorch, onnx, acme" in said) == (2, True)

    code, said = fakexport(installed, *compiled, "acme", "-o", "mlp.acme")
    assert code == 0, said

    run = ["run", "mlp.acme", "--inputs", "in.safetensors", "-o", "out.safetensors"]
    code, said = fakexport(installed, *run)
    assert (code, "pass --trust only for files you built" in said) == (2, True)
    code, said = fakexport(installed, *run, "--trust")
    assert code == 0, said
    expected = load_file(tmp_path / "expected.safetensors")["output"]
    torch.testing.assert_close(load_file(tmp_path / "out.safetensors")["output"], expected)

    from safetensors.torch import save_file

    save_file({"x": torch.zeros(65, 128)}, tmp_path / "in.safetensors")
    code, said = fakexport(installed, *run, "--trust")
    assert (code, "`x` has size 65 in dimension 0" in said) == (2, True)


BLAME = "of the package broken"
RULE = '+++\ncode = "FE999"\nseverity = "error"\nmessage = "m"\n+++\nWhy.\n\n## How to fix it\nDo.\n'


@pytest.mark.parametrize(
    ("group", "value", "files", "arguments", "fault"),
    [
        ("profiles", "broken:a.toml", {"a_toml": "[X]\nbase = 1\n"}, ["devices"], "field 'base' must be"),
        ("profiles", "broken:b.toml", {}, ["devices"], "No such file"),
        ("rules", "broken:f", {"a_md": RULE}, ["explain", "X001"], "codes that begin with FE"),
        ("rules", "broken:f", {"a_md": "text"}, ["explain", "X001"], "is not the page of a rule"),
    ],
)
def test_a_broken_plugin_is_an_error_that_names_its_package(
    group, value, files, arguments, fault, package, fakexport
):
    code, said = fakexport(package(group, value, **files), *arguments)

    assert code == 2, said
    assert fault in said
    assert BLAME in said


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import nothing_like_this", "cannot be imported: ModuleNotFoundError"),
        ("def f(program): raise KeyError('x')", "raises KeyError"),
        ("def f(program): return ['text']", "must return diagnostics"),
    ],
)
def test_a_rule_that_fails_is_no_fault_of_the_model(text, fault, package, fakexport):
    site = package("rules", "broken.checks:f", checks_py=text)

    code, said = fakexport(site, "check", f"{ROOT}/examples/mlp.py:factory")

    assert code == 2, said
    assert f"the plugin 'bad' (fakexport.rules) {BLAME} {fault}" in said
    assert "FE001" not in said


def test_a_package_cannot_replace_a_source_of_fakexport(package, fakexport):
    site = package("sources", "broken.models:f", models_py="raise SystemExit")

    code, said = fakexport(site, "check", "hf:no/such/config.json")

    assert code == 2
    assert BLAME not in said
