"""The public names: which there are, that each resolves, and that `check` stays the function."""

import subprocess
import sys

import pytest

import fakexport

# As README.md and DESIGN.md document them.
PUBLIC_NAMES = [
    "Bundle",
    "bind",
    "build",
    "check",
    "compare",
    "deferred_init",
    "diff",
    "emulate",
    "export",
    "fake_mode",
    "inspect_devices",
    "is_deferred",
    "is_fake",
    "load",
    "load_bundle",
    "materialize_module",
    "materialize_tensor",
    "meta_like",
    "retarget",
    "save",
    "save_bundle",
    "source",
    "summary",
    "transfers",
    "verify_weights",
    "write_source",
]


def test_the_public_names_are_the_documented_ones():
    assert fakexport.__all__ == PUBLIC_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_public_name_is_a_documented_callable(name):
    value = getattr(fakexport, name)

    assert callable(value)
    assert value.__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fakexport' has no attribute 'chekc'"):
        fakexport.chekc  # noqa: B018


@pytest.mark.parametrize(
    "code",
    [
        "import fakexport",
        "import fakexport; fakexport.check",
        "import fakexport; import fakexport.check",
        "import fakexport.check",
        "from fakexport.check import check",
        "from fakexport import check",
        "import fakexport; fakexport.check; from fakexport.check import check",
        "import importlib, fakexport; importlib.import_module('fakexport.check')",
    ],
)
def test_check_is_the_function_whichever_way_the_module_was_imported(code):
    proof = """
import sys, types, fakexport
from fakexport import check as from_the_package
from fakexport.check import check as from_its_module
assert fakexport.check is from_the_package is from_its_module
assert isinstance(sys.modules["fakexport.check"], types.ModuleType)
"""

    process = subprocess.run(
        [sys.executable, "-c", code + proof], capture_output=True, text=True, timeout=120, check=False
    )

    assert process.returncode == 0, process.stderr
