"""Print the size and structure of the source: `python tools/structure.py [FOLDER_OF_ANOTHER_CHECKOUT]`.

Counts lines, files, rooms (top-level packages), arrows (imports from one room to another) and circles
(modules that import each other).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.contract.source_tree import Module, imports

NAME = "fakexport"


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in graph[node]:
            if target not in order:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == order[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in list(graph):
        if node not in order:
            visit(node)
    return found


def main(root: Path) -> None:
    """Print the counts."""
    source = root / "src" / NAME
    files = sorted(source.rglob("*.py"))
    names = {}
    for path in files:
        parts = path.relative_to(source.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {name: set() for name in names}
    for name, path in names.items():
        inside = name if path.name != "__init__.py" else f"{name}.__init__"
        for _, target in imports(Module(str(path), inside, path.read_text(encoding="utf-8"))):
            while target and target not in names:
                target = target.rpartition(".")[0]
            if target not in ("", name, NAME):
                graph[name].add(target)
    rooms: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        for target in targets:
            if NAME not in (name, target) and (room := name.split(".")[1]) != target.split(".")[1]:
                rooms[room].add(target.split(".")[1])
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    tests = sorted((root / "tests").rglob("*.py"))
    test_lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tests)
    folders = [path for path in source.iterdir() if (path / "__init__.py").exists()]
    count = sum(map(len, rooms.values()))
    sys.stdout.write(f"source: {lines:,} lines in {len(files)} files\n")
    sys.stdout.write(f"tests: {test_lines:,} lines in {len(tests)} files\n")
    sys.stdout.write(f"rooms: {len(folders)}; arrows between rooms and files at the top: {count}\n")
    # An `__init__.py` imports the modules of its package, which may import other packages: ignore it.
    inner = {
        name: {target for target in targets if names[target].name != "__init__.py"}
        for name, targets in graph.items()
        if names[name].name != "__init__.py"
    }
    lowest = {room: set[str]() for room in set().union(*rooms.values()) - rooms.keys()}
    sys.stdout.write(f"circles of rooms: {len(circles({**rooms, **lowest}))}\n")
    for circle in circles(inner):
        sys.stdout.write(f"circle of {len(circle)} modules: {', '.join(circle)}\n")


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
