"""A package is used through its face, `__init__.py`: what that does not export is private to the package."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from tests.contract.source_tree import PACKAGE, Module, imported_names, module_at, modules

# What other packages import past a face, and why. Names go from here; none is added.
OWN_FACES = {
    "_torch": "each module is one need with one fact test, and names the versions of torch it was seen on",
    "deploy.aoti": "imports the compiler, which only those who compile pay for",
}

MODULES = modules()
FACES = {path.parent.name: module_at(path) for path in PACKAGE.glob("*/__init__.py")}


def exported(face: Module) -> list[str]:
    """The names in `__all__`, else what the face imports from packages of fakexport, and what it defines."""
    found: list[str] = []
    for node in face.nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                return list(ast.literal_eval(node.value))
            case ast.ImportFrom() if node.level or (node.module or "").startswith("fakexport."):
                found += (alias.asname or alias.name for alias in node.names)
            case ast.FunctionDef() | ast.ClassDef() if not node.name.startswith("_"):
                found.append(node.name)
    return found


EXPORTED = {package: exported(face) for package, face in FACES.items()}


def imports_of_others(module: Module) -> Iterator[tuple[int, str, str, str]]:
    """Line, package, module below it and name, of what a module imports from other packages than its own."""
    for line, origin, name in imported_names(module):
        root, _, below = origin.partition(".")
        package, _, inner = below.partition(".")
        if root == "fakexport" and not package and name in FACES:
            yield line, name, "", ""
        elif root == "fakexport" and package in FACES and package != module.room:
            yield line, package, inner, name


def is_allowed(package: str, inner: str) -> bool:
    return package in OWN_FACES or f"{package}.{inner}" in OWN_FACES


def bypasses(module: Module) -> list[str]:
    """A line for every import of `module` that passes a face."""
    return [
        f"{module.path}:{line}: export {name or 'the name'} from fakexport.{package} and import it there"
        for line, package, inner, name in imports_of_others(module)
        if not is_allowed(package, inner) and (inner or name not in EXPORTED[package])
    ]


def test_packages_are_imported_through_their_faces():
    found = [line for module in MODULES for line in bypasses(module)]

    assert not found, "see docs/architecture.md, Packages:\n" + "\n".join(found)


def test_a_face_exports_what_other_packages_use():
    used = defaultdict(set)
    for module in MODULES:
        for _, package, inner, name in imports_of_others(module):
            if not inner:
                used[package].add(name)

    unused = {package: sorted(set(names) - used[package]) for package, names in EXPORTED.items()}

    assert {package: names for package, names in unused.items() if names} == {}


def test_what_is_still_imported_past_a_face_is_needed():
    past = Counter(
        package if package in OWN_FACES else f"{package}.{inner}"
        for module in MODULES
        for _, package, inner, _ in imports_of_others(module)
        if inner
    )

    assert past.keys() == OWN_FACES.keys(), "remove a name from the list once no package imports it"


@pytest.mark.parametrize(
    "statement",
    [
        "from fakexport.documents import DocumentError",
        "from fakexport.error import InvalidValue",
        "from fakexport._torch.pytree import tree_leaves",
        "from fakexport.deploy.aoti import open_aoti",
        "from fakexport.weights.binding import bound_program",
        "from .binding import bound_program",
        "from . import binding",
        "import torch.export",
    ],
)
def test_a_face_is_used(statement):
    module = Module("sample.py", "fakexport.weights.sample", statement)

    assert bypasses(module) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from fakexport.documents.document_error import escaped",
        "from ..documents.escaping import escaped",
        "from fakexport.documents import escaping",
        "from fakexport import documents",
        "from .. import documents",
        "import fakexport.documents.document_error",
        "importlib.import_module('fakexport.documents.document_error')",
        "def f():\n    from fakexport.program.walk import walk",
        "if TYPE_CHECKING:\n    from fakexport.program.walk import walk",
        "from fakexport.deploy.opening import open_program",
    ],
)
def test_an_import_past_a_face_is_found(statement):
    module = Module("sample.py", "fakexport.weights.sample", statement)

    assert len(bypasses(module)) == 1
