"""Packages that a message names."""

import importlib.metadata
import shlex

import pytest

from fakexport.models import libraries, packages_of


def no_metadata(name):
    raise importlib.metadata.PackageNotFoundError(name)


@pytest.mark.parametrize("requires", [lambda name: [], lambda name: None, no_metadata])
@pytest.mark.parametrize("is_clone", [True, False])
def test_an_extra_without_metadata_is_never_taken_for_a_package(monkeypatch, tmp_path, requires, is_clone):
    """As with a clone on PYTHONPATH, or one that was installed before it had the extra."""
    monkeypatch.setattr("importlib.metadata.requires", requires)
    monkeypatch.setattr(libraries, "__file__", str(tmp_path / "src/fakexport/models/libraries.py"))
    if is_clone:
        (tmp_path / "pyproject.toml").touch()

    assert shlex.split(packages_of("cuda")) == [f"{tmp_path if is_clone else 'fakexport'}[cuda]"]
