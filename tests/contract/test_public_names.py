"""The public names: which there are, that each resolves, and that what they return and raise is public."""

import ast
import builtins
import inspect
import pkgutil
import re

import pytest

import fakexport
from tests.contract.source_tree import PACKAGE, ROOT

PAGE = ROOT / "docs" / "python.md"
FUNCTIONS = [name for name in fakexport.__all__ if inspect.isfunction(getattr(fakexport, name))]
# Of torch and of Python, which the functions hand on.
FOREIGN = {
    *("Any", "Callable", "ExportedProgram", "FakeTensorMode", "Iterator"),
    *("Mapping", "None", "P", "T", "Tensor"),
}


def test_the_public_names_are_the_documented_ones():
    section = PAGE.read_text(encoding="utf-8").partition("\n## All names\n")[2]

    documented = re.findall(r"^\| `fe\.(\w+)` \| \S", section, re.MULTILINE)

    assert sorted(documented) == sorted(fakexport.__all__)


def test_a_type_checker_sees_the_names_that_are_fetched():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {
        alias.name: (node.module or "").removeprefix("fakexport.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name  # Only such a name is public to a type checker.
    }
    renamed = {
        str(node.targets[0].id): node.value.id
        for node in block.body
        if isinstance(node, ast.Assign)
        if isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Name)
    }

    assert renamed == fakexport._RENAMED
    assert {**homes, **dict.fromkeys(renamed, "exporting.program")} == fakexport._HOMES


@pytest.mark.parametrize("name", fakexport.__all__)
def test_a_public_name_is_documented(name):
    value = getattr(fakexport, name)

    assert callable(value)
    assert value.__doc__
    assert "Example:" in value.__doc__ or inspect.isclass(value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_returns_is_public(name):
    annotation = str(inspect.signature(getattr(fakexport, name)).return_annotation)

    named = set(re.findall(r"\b[A-Z]\w*", annotation))

    assert named <= {*fakexport.__all__, *FOREIGN}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_raises_is_public(name):
    documentation = inspect.getdoc(getattr(fakexport, name)) or ""
    sections = re.findall(r"^(?:Raises|Warns):\n((?: +.*\n?)+)", documentation, re.MULTILINE)
    raised = [
        name for section in sections for name in re.findall(r"^ {4}([A-Z][\w, ]+):", section, re.MULTILINE)
    ]

    named = {name for names in raised for name in names.split(", ")}

    assert named <= {*fakexport.__all__, *dir(builtins)}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fakexport' has no attribute 'chekc'"):
        fakexport.chekc  # noqa: B018


def test_no_public_name_is_also_a_package():
    """Importing a submodule sets it as an attribute of its package, where the public name would be."""
    packages = {module.name for module in pkgutil.iter_modules(fakexport.__path__)}

    assert not packages & set(fakexport.__all__)
