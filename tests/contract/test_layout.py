"""The shape of the code: names that say something, files that can be read, streams in one room."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.source_tree import Module, modules

VAGUE_WORDS = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
LINE_LIMIT = 400
# path -> why the file is better in one piece
LONGER_FOR_A_REASON: dict[str, str] = {}

MODULES = modules()


def stream_uses(module: Module) -> Iterator[str]:
    """A line for every use of a standard stream, `print` included."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id="print" | "input")):
                pass
            case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr" | "stdin"):
                pass
            case ast.ImportFrom(module="sys", names=names) if {"stdout", "stderr", "stdin"} & {
                alias.name for alias in names
            }:
                pass
            case _:
                continue
        yield f"{module.path}:{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_a_name_says_what_the_module_is(module):
    words = {word for part in Path(module.path).with_suffix("").parts for word in part.split("_")}

    assert not words & VAGUE_WORDS, f"{module.path}: name it after its one verb or value"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_a_file_can_be_read_at_a_sitting(module):
    lines = len(module.text.splitlines())

    assert lines <= LINE_LIMIT or module.path in LONGER_FOR_A_REASON, (
        f"{module.path} has {lines} lines, the limit is {LINE_LIMIT}"
    )


def test_every_exception_is_still_needed():
    longer = {module.path for module in MODULES if len(module.text.splitlines()) > LINE_LIMIT}

    assert LONGER_FOR_A_REASON.keys() <= longer


@pytest.mark.parametrize(
    "module", [module for module in MODULES if module.room != "cli"], ids=lambda module: module.path
)
def test_only_the_command_line_writes_to_a_stream(module):
    found = list(stream_uses(module))

    assert not found, "a stream outside cli/:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "statement",
    ["print(1)", "import sys\nsys.stderr.write('x')", "from sys import stdout", "f(file=sys.stdout)"],
)
def test_a_stream_is_found(statement):
    module = Module("sample.py", "fakexport.fake.sample", statement)

    found = list(stream_uses(module))

    assert len(found) == 1
