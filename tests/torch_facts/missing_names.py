"""Runs fakexport where one private name of torch does not exist, as in a torch that renamed it.

torch itself keeps the name. The sources of `fakexport._torch` are compiled with a different name in its
place, in an import, an attribute or a string, so that each use fails as it would without the name.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path

SUFFIX = "_that_is_missing"

# Private names of Python.
_OF_PYTHON = {"_fields", "_getframe", "_initializing", "_load_unlocked", "_lru_cache_wrapper", "_replace"}
_OF_PYTHON |= {"_bootstrap", "_co_fields"}


def private_names() -> dict[str, frozenset[str]]:
    """Return the private names of torch that `_torch` uses, with the names of the files that use them.

    A module of torch is named in full: `torch._dynamo.exc`.
    """
    found: dict[str, set[str]] = defaultdict(set)
    package = find_spec("fakexport")
    assert package is not None
    assert package.origin is not None
    for path in sorted(Path(package.origin).with_name("_torch").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = frozenset(_defined(tree))
        for name in _used(tree):
            if name not in own and name not in _OF_PYTHON:
                found[name].add(str(path))
    return {name: frozenset(paths) for name, paths in sorted(found.items())}


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def _used(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if _is_in_torch(module):
                if _is_private_module(module):
                    yield module
                yield from (each.name for each in node.names if _is_private(each.name))
            case ast.Import():
                yield from (each.name for each in node.names if _is_private_module(each.name))
            case ast.Attribute(attr=name) if _is_private(name):
                yield name
            case ast.Constant(value=str(name)) if name.isidentifier() and _is_private(name):
                yield name


def _is_private(name: str) -> bool:
    return name.startswith("_") and len(name) > 3 and not name.startswith(("__", "_fakexport", "_cuda_"))


def _is_in_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def _is_private_module(module: str) -> bool:
    return _is_in_torch(module) and any(map(_is_private, module.split(".")))


class _Without(ast.NodeTransformer):
    """Replaces a name by one that does not exist."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module == self._name:
            node.module += SUFFIX
        if _is_in_torch(node.module or "") and not node.level:
            for each in node.names:
                if each.name == self._name:
                    each.asname, each.name = each.asname or each.name, each.name + SUFFIX
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        for each in node.names:
            if each.name == self._name:
                each.name += SUFFIX
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == self._name:
            node.attr += SUFFIX
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return (
            ast.copy_location(ast.Constant(node.value + SUFFIX), node) if node.value == self._name else node
        )


class _Loader(SourceFileLoader):
    """Compiles a module without the name, and keeps no compiled file."""

    name_to_remove = ""

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        path = self.get_filename(fullname)
        tree = _Without(self.name_to_remove).visit(ast.parse(self.get_data(path)))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class Remove(MetaPathFinder):
    """Loads the files of `_torch` that use a private name as if torch did not have it."""

    def __init__(self, name: str, paths: frozenset[str]) -> None:
        self._name, self._paths = name, paths

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if not fullname.startswith("fakexport._torch"):
            return None
        spec = PathFinder.find_spec(fullname, path)  # type: ignore[arg-type]
        if spec is not None and spec.origin in self._paths:
            loader = _Loader(fullname, spec.origin)
            loader.name_to_remove = self._name
            spec.loader = loader
        return spec


class Outcomes:
    """A process that has imported torch and not fakexport, and a fork of it for each command."""

    def __enter__(self) -> Outcomes:
        command = [sys.executable, "-W", "ignore", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def of(self, name: str, paths: frozenset[str], arguments: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command of fakexport without a name, and return how it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, [*paths], arguments]) + "\n")
        self._process.stdin.flush()
        return subprocess.CompletedProcess(arguments, *json.loads(self._process.stdout.readline()))


def main() -> None:

    for line in sys.stdin:
        name, paths, arguments = json.loads(line)
        with tempfile.TemporaryDirectory() as streams:
            out, err = Path(streams, "out"), Path(streams, "err")
            if (child := os.fork()) == 0:
                os._exit(_code(name, frozenset(paths), arguments, out, err))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            sys.stdout.write(json.dumps([code, out.read_text(), err.read_text()]) + "\n")
            sys.stdout.flush()


def _code(name: str, paths: frozenset[str], arguments: list[str], out: Path, err: Path) -> int:
    for path, stream in ((out, 1), (err, 2)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), stream)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = os.fdopen(1, "w"), os.fdopen(2, "w")
    try:
        sys.meta_path.insert(0, Remove(name, paths))
        from fakexport.cli import main

        code = main(arguments)
    except BaseException:
        traceback.print_exc()
        code = -1
    sys.stdout.flush()
    sys.stderr.flush()
    return code & 0xFF


if __name__ == "__main__":
    main()
