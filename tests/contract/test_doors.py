"""The packages of docs/architecture.md, and the imports between them: they go down only."""

import re

import pytest

from tests.contract.source_tree import PACKAGE, ROOT, Module, imports, modules

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
# From the top down. A package may import any package of a lower tier.
TIERS = [set(line.split()) for line in re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S)[0].splitlines()]
# Within one tier: a timed run is reported as a spread, a capture returns a program, weights are bound to what
# an archive holds, and a path in an error is escaped like the text of a document. The one that
# goes up: a difference of programs displays itself in a notebook, as reports do.
SIDE_DOORS = {
    ("program", "report"),
    ("deploy", "report"),
    ("capture", "program"),
    ("rules", "diagnostics"),
    ("archive", "weights"),
    ("files", "documents"),
}
# Open to every room but `_torch`; they import nothing but each other, as SIDE_DOORS has it.
COMMON_ROOMS = {"diagnostics", "rules", "_version", "_libraries", "_forms"}
# The base of every error: open to every room, and imports none.
ERRORS = "error"

TIER_OF = {room: depth for depth, tier in enumerate(TIERS) for room in tier}
ROOMS = TIER_OF.keys() | COMMON_ROOMS | {ERRORS}


def is_open(origin: str, target: str) -> bool:
    if origin == target or (origin, target) in SIDE_DOORS:
        return True
    if ERRORS in (origin, target):
        return target == ERRORS
    if target in COMMON_ROOMS:
        return origin not in COMMON_ROOMS | {"_torch"}
    return origin not in COMMON_ROOMS and TIER_OF[origin] < TIER_OF[target]


def closed_doors(module: Module) -> list[str]:
    """A line for every import of `module` that has no door."""
    if module.room == "__init__":
        return []  # the public names, fetched on first use
    if module.room not in ROOMS:
        return [f"{module.path}: `{module.room}` has no place in docs/architecture.md, under Packages"]
    found = []
    for line, target in imports(module):
        package, _, below = target.partition(".")
        room = below.partition(".")[0]
        if package != "fakexport":
            continue
        if room not in ROOMS:
            found.append(f"{module.path}:{line}: `{target}`: import from a room, not from the public names")
        elif not is_open(module.room, room):
            found.append(
                f"{module.path}:{line}: {module.room} -> {room} goes up: see docs/architecture.md, Packages"
            )
    return found


def test_the_page_describes_every_package():
    found = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    described = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M))

    assert found - {"__init__"} == ROOMS
    assert described == {name for name in ROOMS if (PACKAGE / name).is_dir()}


def test_imports_go_down_only():
    found = [line for module in modules() for line in closed_doors(module)]

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("room", "statement"),
    [
        ("cli.main", "from fakexport.checking import check"),
        ("cli.main", "from fakexport.devices import profiles"),
        ("cli.main", "from fakexport._version import __version__"),
        ("checking", "from fakexport.report import verdict"),
        ("capture.export", "from ..program import summary"),
        ("fake.build", "from .placement import place"),
        ("fake.__init__", "from .build import build"),
        ("fake.build", "from fakexport.history import recording"),
        ("rules.rule", "from fakexport.diagnostics import Span"),
        ("devices.emulation", "from .. import rules"),
        ("_torch.device_guard", "import torch"),
        ("_torch.device_guard", "from fakexport.error import FakexportError"),
        ("rules", "from fakexport.error import InvalidValue"),
    ],
)
def test_an_open_door_is_open(room, statement):
    module = Module("sample.py", f"fakexport.{room}", statement)

    found = closed_doors(module)

    assert not found


@pytest.mark.parametrize(
    ("room", "statement", "arrow"),
    [
        ("devices.emulation", "import fakexport.capture", "devices -> capture"),
        ("devices.emulation", "from fakexport.capture import export", "devices -> capture"),
        ("devices.emulation", "from ..capture import export", "devices -> capture"),
        ("devices.emulation", "from .. import capture", "devices -> capture"),
        ("devices.__init__", "from ..capture import export", "devices -> capture"),
        ("devices.emulation", "def f():\n    from ..fake import build", "devices -> fake"),
        ("devices.emulation", "if TYPE_CHECKING:\n    from ..fake import build", "devices -> fake"),
        ("devices.emulation", "importlib.import_module('fakexport.fake.build')", "devices -> fake"),
        ("report.table", "from fakexport.checking import Report", "report -> checking"),
        ("program.diff", "from fakexport.capture import export", "program -> capture"),
        ("sources.factory", "from fakexport.fake import build", "sources -> fake"),
        ("history.replay", "from fakexport.fake import fake_mode", "history -> fake"),
        ("diagnostics.text", "from fakexport.rules import explain", "diagnostics -> rules"),
        ("rules.rule", "from fakexport.devices import Profile", "rules -> devices"),
        ("_torch.device_guard", "from fakexport.diagnostics import Diagnostic", "_torch -> diagnostics"),
        ("checking", "from fakexport import cli", "checking -> cli"),
        ("cli.main", "import fakexport", "import from a room"),
        ("cli.main", "from fakexport import emulate", "import from a room"),
        ("devices.emulation", "from fakexport import __version__", "import from a room"),
        ("error", "from fakexport.documents import escaped", "error -> documents"),
        ("helpers", "import json", "`helpers` has no place"),
    ],
)
def test_a_closed_door_is_found(room, statement, arrow):
    module = Module("sample.py", f"fakexport.{room}", statement)

    found = closed_doors(module)

    assert len(found) == 1
    assert arrow in found[0]
