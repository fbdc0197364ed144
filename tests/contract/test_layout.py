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
    for node in module.nodes:
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


def test_a_name_says_what_the_module_is():
    found = [module.path for module in MODULES if words_of(module.path) & VAGUE_WORDS]

    assert not found, "name it after its one verb or value:\n" + "\n".join(found)


def words_of(path: str) -> set[str]:
    return {word for part in Path(path).with_suffix("").parts for word in part.split("_")}


def test_a_file_can_be_read_at_a_sitting():
    lines = {module.path: len(module.text.splitlines()) for module in MODULES}
    longer = {path: count for path, count in lines.items() if count > LINE_LIMIT}

    assert longer.keys() == LONGER_FOR_A_REASON.keys(), f"the limit is {LINE_LIMIT} lines: {longer}"


def test_only_the_command_line_writes_to_a_stream():
    relay = (
        "src/fakexport/files/processes/forked_output.py"  # Of what a model writes in a process of its own.
    )
    start = "src/fakexport/__main__.py"  # It writes one line if the import of `cli` is interrupted.
    others = [module for module in MODULES if module.path not in (relay, start)]
    writers = [module for module in others if module.room != "cli"]
    found = [line for module in writers for line in stream_uses(module)]

    assert not found, "a stream outside cli/:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "statement",
    ["print(1)", "import sys\nsys.stderr.write('x')", "from sys import stdout", "f(file=sys.stdout)"],
)
def test_a_stream_is_found(statement):
    module = Module("sample.py", "fakexport.emulation.fake.sample", statement)

    found = list(stream_uses(module))

    assert len(found) == 1
