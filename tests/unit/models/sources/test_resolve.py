"""From a spec to its source: each form, and one clear line for each thing that is wrong with it."""

import re
import sys
import tomllib

import pytest

from fakexport.models import LIBRARIES
from fakexport.models.sources import SourceError, how_to_install, resolve
from tests.contract.source_tree import ROOT


@pytest.mark.parametrize("spec", ["", "llama", "examples/mlp.py", "onnx:what is this"])
def test_an_unknown_form_gives_the_list_of_forms(spec):
    with pytest.raises(SourceError) as caught:
        resolve(spec)

    message = str(caught.value)
    assert message.startswith(f"{spec!r} is not a source: write ")
    for form in ("file.py:FACTORY", "package.module:FACTORY", *(f"{row.prefix}:" for row in LIBRARIES)):
        assert form in message


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.package)
def test_a_library_that_is_not_installed_is_named_with_what_installs_it(library, monkeypatch):
    monkeypatch.setitem(sys.modules, library.package, None)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    with pytest.raises(SourceError, match=rf"pip install .*{library.package}\W"):
        resolve(f"{library.prefix}:anything")

    assert any(re.fullmatch(rf"{library.package}\W.*", text) for text in extras[library.package])


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.package)
def test_a_library_that_a_factory_lacks_is_installed_by_the_name_pip_knows(library, monkeypatch):
    """The name of a module may be anyone's on an index: `pip install open-clip` is not open_clip."""
    monkeypatch.delitem(sys.modules, library.package, raising=False)

    said = how_to_install(ModuleNotFoundError("No module", name=library.package))

    command = said.partition(" -m pip install ")[2].rstrip("`").split()
    assert library.package in command
    assert any(word.startswith("torch==") for word in command) == library.needs_torchvision


def test_every_error_is_one_line_and_a_value_error():
    error = SourceError("first\n  second")

    assert str(error) == "first second"
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("spec", ["hf:gpt2", "tests.unit.models.sources.a_package_module:factory"])
def test_a_source_remembers_its_spec(spec):
    assert resolve(spec).spec == spec
