"""What the contract tests read: the package's modules as syntax trees, and what they import."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fakexport"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
_ROWS = [row.split() for row in re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S)[0].splitlines()]
ROOMS = [room.removesuffix(":") for room, *_ in _ROWS]
PACKAGES = [
    room.removesuffix(":") if f"{package}:" == room else f"{room.removesuffix(':')}.{package}"
    for room, *packages in _ROWS
    for package in packages
]
"""Dotted below `fakexport`, from the top down: `emulation.fake`. A room is the package of its own modules."""


@dataclass(frozen=True)
class Module:
    """One source file.

    Args:
        path: As a person would write it, relative to the repository: `src/fakexport/emulation/fake/build.py`.
        name: Dotted, with `.__init__` for a package: `fakexport.emulation.fake.build`.
        text: Its source.
    """

    path: str
    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, as `ast.walk` gives them."""
        return tuple(ast.walk(self.tree))

    @property
    def room(self) -> str:
        """The part below `fakexport`: `emulation`, `checking`, `__init__`."""
        return self.name.split(".")[1]

    @property
    def package(self) -> str:
        """The one of `PACKAGES` that it belongs to."""
        return package_of(self.name)


def package_of(name: str) -> str:
    """The one of `PACKAGES` that a dotted name below `fakexport` is in; else the part below `fakexport`."""
    room, _, below = name.removeprefix("fakexport").removeprefix(".").partition(".")
    inner = f"{room}.{below.partition('.')[0]}"
    return inner if inner in PACKAGES else room


@cache
def modules(folder: Path = PACKAGE) -> list[Module]:
    """Every module below the folder, read and parsed once for all tests of a process."""
    return [module_at(path) for path in sorted(folder.rglob("*.py"))]


@cache
def module_at(path: Path) -> Module:
    below_root = path.relative_to(ROOT)
    parts = below_root.with_suffix("").parts
    return Module(str(below_root), ".".join(parts).removeprefix("src."), path.read_text(encoding="utf-8"))


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """Line and dotted target of every import, wherever it stands: in a function, under TYPE_CHECKING.

    `from a.b import c` gives `a.b.c`, whether `c` is a module or a name in one.
    """
    for line, origin, name in imported_names(module):
        yield line, f"{origin}.{name}" if name else origin


def imported_names(module: Module) -> Iterator[tuple[int, str, str]]:
    """Line, dotted origin and name of every import; "" is the name if the module itself is imported."""
    for node in module.nodes:
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name, "") for alias in node.names)
            case ast.ImportFrom():
                origin = _origin(node, module)
                yield from ((node.lineno, origin, alias.name) for alias in node.names)
            case ast.Call(args=[ast.Constant(value=str(target)), *_]) if _is_import_call(node.func):
                yield node.lineno, target, ""


def _origin(node: ast.ImportFrom, module: Module) -> str:
    if node.level == 0:
        return node.module or ""
    above = module.name.split(".")[: -node.level]
    return ".".join([*above, *([node.module] if node.module else [])])


def _is_import_call(function: ast.expr) -> bool:
    if getattr(function, "attr", getattr(function, "id", "")) not in {"import_module", "__import__"}:
        return False
    return ast.unparse(function) in {"importlib.import_module", "import_module", "__import__"}
