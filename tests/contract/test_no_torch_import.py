"""What must answer at once does not import torch or a model library."""

import subprocess
import sys

import pytest

from fakexport.models import PACKAGES

HEAVY = ("torch", *PACKAGES, "diffusers", "accelerate", "numpy", "safetensors")


def heavy_imports(code: str) -> list[str]:
    """The heavy packages that a fresh interpreter has loaded after running `code`."""
    report = f"import sys; print('loaded:', *[name for name in {HEAVY} if name in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()[-1].split()[1:]


def test_importing_the_package_imports_no_torch():
    assert heavy_imports("import fakexport") == []


def test_listing_the_public_names_imports_no_torch():
    assert heavy_imports("import fakexport; dir(fakexport); fakexport.__version__") == []


@pytest.mark.parametrize("room", ["rules.diagnostics", "rules", "report"])
def test_the_common_rooms_import_no_torch(room):
    assert heavy_imports(f"import fakexport.{room}") == []


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["check", "--help"], ["verify-weights", "--help"], ["explain", "FE201"], ["devices"]],
    ids=" ".join,
)
def test_a_command_that_needs_no_model_imports_no_torch(arguments):
    code = f"""
import sys
from fakexport.cli import main
sys.argv = ["fakexport", *{arguments}]
try:
    code = main()
except SystemExit as exit:
    code = exit.code
assert not code, code
"""

    assert heavy_imports(code) == []


@pytest.mark.parametrize("module", ["archive.manifest_json", "files.container"])
def test_a_hostile_archive_meets_no_torch(module):
    assert heavy_imports(f"import fakexport.{module}") == []


def test_the_probe_sees_a_heavy_import():
    assert heavy_imports("import safetensors") == ["safetensors"]
