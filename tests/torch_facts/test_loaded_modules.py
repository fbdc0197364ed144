"""Modules of `sys.modules` are found as a look at all of them finds them, whatever was imported since."""

import importlib
import sys
from types import ModuleType

import pytest

from fakexport._torch.loaded_modules import LoadedModules


@pytest.fixture
def colored():
    """Finds the modules that have a color."""
    return LoadedModules(lambda name, module: "its_color" in getattr(module, "__dict__", ()))


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module into a folder that is importable, and forgets it after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(name, text):
        names.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in names:
        sys.modules.pop(name, None)


def of_all():
    return {name: module for name, module in sys.modules.items() if "its_color" in vars(module)}


def test_what_is_imported_leaves_and_comes_again_is_found(colored, write):
    write("a_red_one", "its_color = 1")
    write("a_blue_one", "its_color = 2")
    assert colored.find() == of_all() == {}

    for name in ("a_red_one", "a_blue_one"):
        importlib.import_module(name)
        assert list(colored.find()) == list(of_all())
    del sys.modules["a_red_one"]
    assert list(colored.find()) == ["a_blue_one"]
    again = importlib.import_module("a_red_one")
    assert colored.find() == of_all()
    assert colored.find()["a_red_one"] is again


def test_what_a_person_adds_later_is_seen(colored, write, monkeypatch):
    write("a_plain_file", "")
    module = importlib.import_module("a_plain_file")
    assert colored.find() == {}

    module.its_color = 1
    monkeypatch.setattr(sys.modules["__main__"], "its_color", 1, raising=False)

    assert colored.find() == of_all()
    assert {"a_plain_file", "__main__"} <= colored.find().keys()


def test_a_module_that_looks_while_it_is_imported_is_found_afterwards(colored, write):
    sys.modules["a_finder"] = ModuleType("a_finder")
    sys.modules["a_finder"].find = colored.find
    try:
        write("an_early_one", "import a_finder\nearly = dict(a_finder.find())\nits_color = 1")
        found = importlib.import_module("an_early_one")
    finally:
        del sys.modules["a_finder"]

    assert found.early == {}
    assert colored.find() == {"an_early_one": found}
