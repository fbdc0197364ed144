"""The public names: which there are, that each resolves, and that no package has one."""

import pkgutil

import pytest

import fakexport

# As README.md and docs/python.md document them.
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


def test_no_public_name_is_also_a_package():
    """Importing a submodule sets it as an attribute of its package, where the public name would be."""
    packages = {module.name for module in pkgutil.iter_modules(fakexport.__path__)}

    assert not packages & set(fakexport.__all__)
