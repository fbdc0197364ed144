"""The layers of docs/architecture.md, and the imports between their packages: they go down only."""

import re

import pytest

from tests.contract.source_tree import PACKAGE, PACKAGES, PAGE, ROOMS, Module, imports, modules, package_of

# Open to every room but `_torch`; they import nothing of fakexport.
COMMON = {"_version", "_lazy_face"}
# The base of every error: open to every layer, and imports none.
ERRORS = "error"
# The entry point: above all rooms.
ENTRY = "__main__"

PLACE_OF = {package: place for place, package in enumerate(PACKAGES)}
KNOWN = PLACE_OF.keys() | set(ROOMS) | COMMON | {ERRORS, ENTRY}


def is_open(origin: str, target: str) -> bool:
    if origin == target or (origin == ENTRY and target in PLACE_OF):
        return True
    if ERRORS in (origin, target):
        return target == ERRORS
    if target in COMMON:
        return origin not in COMMON | {"_torch"}
    return origin in PLACE_OF and target in PLACE_OF and PLACE_OF[origin] < PLACE_OF[target]


def closed_doors(module: Module) -> list[str]:
    """A line for every import of `module` that has no door."""
    origin = package_of(module.name)
    if module.name == "fakexport.__init__":
        return []  # the public names, fetched on first use
    if origin not in KNOWN:
        return [f"{module.path}: `{origin}` has no place in docs/architecture.md, under Layers"]
    found = []
    for line, target in imports(module):
        if target.partition(".")[0] != "fakexport":
            continue
        package = package_of(target)
        if package not in KNOWN:
            found.append(f"{module.path}:{line}: `{target}`: import from a room, not from the public names")
        elif not is_open(origin, package):
            found.append(f"{module.path}:{line}: {origin} -> {package} goes up: see docs/architecture.md")
    return found


def test_the_page_describes_every_package():
    rows = re.findall(r"^\| (?:`(\w+)`)? ?\| `(\w+)` \|", PAGE, re.M)
    described, room = [], ""
    for first, package in rows:
        room = first or room
        described.append(room if package == room else f"{room}.{package}")

    found = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"__init__"} == {*ROOMS, *COMMON, ERRORS, ENTRY}
    assert described == list(PACKAGES)
    assert all((PACKAGE / package.replace(".", "/") / "__init__.py").exists() for package in PACKAGES)


def test_imports_go_down_only():
    found = [line for module in modules() for line in closed_doors(module)]

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("origin", "statement"),
    [
        ("cli.main", "from fakexport.checking import check"),
        ("cli.main", "from fakexport._version import __version__"),
        ("exporting.capture.export", "from ..program import summary"),
        ("emulation.fake.__init__", "from .build import build"),
        ("rules.rule", "from fakexport.rules.diagnostics import Span"),
        ("emulation.devices.emulation", "from ... import rules"),
        ("_torch.emulation.device_guard", "import torch"),
        ("rules", "from fakexport.error import InvalidValue"),
    ],
)
def test_an_open_door_is_open(origin, statement):
    module = Module("sample.py", f"fakexport.{origin}", statement)

    found = closed_doors(module)

    assert not found


@pytest.mark.parametrize(
    ("origin", "statement", "arrow"),
    [
        ("emulation.devices.host", "import fakexport.exporting.capture", "devices -> exporting.capture"),
        ("emulation.devices.host", "from ...exporting.capture import export", "-> exporting.capture"),
        ("emulation.devices.__init__", "from ...report import text", "emulation.devices -> report"),
        ("emulation.devices.host", "def f():\n    from ..fake import build", "devices -> emulation.fake"),
        ("emulation.devices.host", "if TYPE_CHECKING:\n    from ..fake import build", "-> emulation.fake"),
        (
            "emulation.devices.host",
            "importlib.import_module('fakexport.emulation.fake')",
            "-> emulation.fake",
        ),
        ("rules.diagnostics.text", "from fakexport.rules import explain", "rules.diagnostics -> rules"),
        ("_torch.costs.x", "from fakexport.rules.diagnostics import Span", "_torch -> rules.diagnostics"),
        ("checking", "from fakexport import cli", "checking -> cli"),
        ("cli.main", "import fakexport", "import from a room"),
        ("emulation.devices.host", "from fakexport import __version__", "import from a room"),
        ("error", "from fakexport.files import escaped", "error -> files"),
        ("helpers", "import json", "`helpers` has no place"),
    ],
)
def test_a_closed_door_is_found(origin, statement, arrow):
    module = Module("sample.py", f"fakexport.{origin}", statement)

    found = closed_doors(module)

    assert len(found) == 1
    assert arrow in found[0]
