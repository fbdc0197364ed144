"""A package is used through its face, `__init__.py`: what that does not export is private to the package."""

import ast
import importlib
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from tests.contract.source_tree import (
    PACKAGE,
    PACKAGES,
    Module,
    imported_names,
    module_at,
    modules,
    package_of,
)

# What other packages import past a face, and why. Names go from here; none is added.
OWN_FACES = {
    "_torch": "each module is one need with one fact test, and names the versions of torch it was seen on",
    "deploy.aoti": "imports the compiler, which only those who compile pay for",
}

MODULES = modules()
FACES = {name: module_at(PACKAGE / name.replace(".", "/") / "__init__.py") for name in PACKAGES}


def exported(face: Module) -> list[str]:
    """The names in `__all__`, else what the face imports from packages of fakexport, and what it defines."""
    found: list[str] = []
    for node in face.nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                return list(ast.literal_eval(node.value))
            case ast.ImportFrom(module="fakexport._lazy_face"):
                pass
            case ast.ImportFrom() if node.level or (node.module or "").startswith("fakexport."):
                found += (alias.asname or alias.name for alias in node.names)
            case ast.FunctionDef() | ast.ClassDef() if not node.name.startswith("_"):
                found.append(node.name)
    return found


EXPORTED = {package: exported(face) for package, face in FACES.items()}


def imports_of_others(module: Module) -> Iterator[tuple[int, str, str, str]]:
    """Line, package, module below it and name, of what a module imports from other packages than its own."""
    for line, origin, name in imported_names(module):
        if origin.partition(".")[0] != "fakexport":
            continue
        if name and f"{origin}.{name}".removeprefix("fakexport.") in FACES:
            yield line, package_of(f"{origin}.{name}"), "", ""
        elif (package := package_of(origin)) in FACES and package != module.package:
            yield line, package, origin.removeprefix(f"fakexport.{package}").removeprefix("."), name


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

    assert not found, "see docs/architecture.md, Layers:\n" + "\n".join(found)


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
        "from fakexport.files.documents import DocumentError",
        "from fakexport.error import InvalidValue",
        "from fakexport.deploy.aoti import open_aoti",
        "from fakexport.archive.weights.binding import bound_program",
        "from . import binding",
    ],
)
def test_a_face_is_used(statement):
    module = Module("sample.py", "fakexport.archive.weights.sample", statement)

    assert bypasses(module) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from fakexport.files.documents.document_error import escaped",
        "from ...files.escaping import escaped",
        "from fakexport.files import documents",
        "import fakexport.files.documents.document_error",
        "importlib.import_module('fakexport.files.documents.document_error')",
        "if TYPE_CHECKING:\n    from fakexport.exporting.program.walk import walk",
    ],
)
def test_an_import_past_a_face_is_found(statement):
    module = Module("sample.py", "fakexport.archive.weights.sample", statement)

    assert len(bypasses(module)) == 1


def test_threads_do_not_wait_for_each_other_where_names_are_lazy(tmp_path, monkeypatch):
    """One imports a module that uses a lazy name; the other holds another lazy name that needs the module."""
    lazy = 'lazy_names(__name__, {"needs_slow": "first", "needs_nothing": "second"})'
    files = {
        "acme_events.py": "import threading\nbegun, entered = threading.Event(), threading.Event()\n",
        "acme_slow.py": "from acme_events import begun, entered\nbegun.set()\nentered.wait(20)\n"
        "from acme_lazy import second\n",
        "acme_lazy/__init__.py": f"from fakexport._lazy_face import lazy_names\n__getattr__ = {lazy}\n",
        "acme_lazy/needs_slow.py": "from acme_events import entered\nentered.set()\n"
        "import acme_slow\nfirst = 1\n",
        "acme_lazy/needs_nothing.py": "second = 2\n",
    }
    (tmp_path / "acme_lazy").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    events, package = importlib.import_module("acme_events"), importlib.import_module("acme_lazy")
    threads = [
        threading.Thread(target=importlib.import_module, args=("acme_slow",), daemon=True),
        threading.Thread(target=lambda: events.begun.wait(20) and package.first, daemon=True),
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert not any(thread.is_alive() for thread in threads)
