"""Packages that a message names."""

from fakexport.models import packages_of


def test_an_extra_that_the_installed_metadata_lacks_is_never_taken_for_a_package(monkeypatch):
    monkeypatch.setattr("importlib.metadata.requires", lambda name: [])

    assert packages_of("cuda") == "'fakexport[cuda]'"
