"""Find the checks of a sweep that a change in the repository can affect."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fakexport.error import FakexportError
from fakexport.models import library_of, named_path

from .zoo_file import SweepItem, ZooFile, ZooFileError, items_of


class RevisionError(FakexportError, ValueError):
    """Git cannot determine which files changed. The message is one line."""


def changed_items(zoo: ZooFile, revision: str) -> tuple[SweepItem, ...]:
    """Return the checks whose results may differ from those at a revision, according to the changed files.

    These are new checks of the zoo file, and checks that use a changed file. A check uses its factory's file
    and operator libraries, the files of the repository that they import, non-Python files in or below the
    folders of all these files, its device map, the config of an `hf:` model, and the files next to this
    config if their code is trusted. Changes to hub models, model types and installed packages are not
    detected.

    Args:
        zoo: A zoo file in a git working tree. Uncommitted changes count as changes.
    Raises:
        RevisionError: there is no repository, no such revision, or no git.
    """
    folder = zoo.path.resolve().parent
    root = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
    revision = _git(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
    ).strip()
    names = _git(root, "diff", "--name-only", "--no-renames", "-z", revision, "--")
    names += _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    changed = frozenset(root / name for name in names.split("\0") if name)
    before = _items_before(zoo, root, revision) if zoo.path.resolve() in changed else None
    repository = _Repository(folder, root, changed)
    return tuple(
        item
        for item in zoo.items
        if (before is not None and item.command not in before) or repository.may_have_changed(item)
    )


def _items_before(zoo: ZooFile, root: Path, revision: str) -> frozenset[str]:
    """Return the commands in the zoo file at the revision; none if the file was missing or unreadable."""
    try:
        content = _git(root, "show", f"{revision}:{zoo.path.resolve().relative_to(root).as_posix()}")
        return frozenset(item.command for item in items_of(content.encode(), zoo.path)[0])
    except (RevisionError, ZooFileError):
        return frozenset()


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RevisionError("--changed-since needs git, which is not installed") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"no revision {arguments[-1].partition('^{')[0]!r}"]
        raise RevisionError(f"git in {folder}: {said[0]}")
    return done.stdout


@dataclass(frozen=True)
class _Repository:
    folder: Path
    root: Path
    changed: frozenset[Path]
    _names: dict[Path, tuple[tuple[int, str], ...]] = field(default_factory=dict)

    def may_have_changed(self, item: SweepItem) -> bool:
        libraries = item.values("--library")
        for value in (*libraries, *item.values("--device-map")):
            if (self.folder / value).resolve() in self._touched:
                return True
        if any(map(self._is_affected, libraries)):
            return True
        if library_of(item.source) is not None:
            if (named := named_path(item.source, self.folder)) is None:
                return False
            path = self.folder / named[1]
            has_code = path.is_file() and item.values("--trust-remote-code")
            code = [path.parent.resolve()] if has_code else []
            return not self._touched.isdisjoint([*_configs(path), *code])
        return self._is_affected(item.source.rpartition(":")[0])

    def _is_affected(self, written: str) -> bool:
        """Return whether a change can affect a Python file or module, its imports, or data next to them."""
        if written.endswith(".py"):
            starts = [self.folder / written]
        else:
            starts = [module for name in _prefixes(written) if (module := self._module(name, [self.folder]))]
            if not starts:
                return any(self._gone())
        starts = [start.resolve() for start in starts if start.resolve().is_relative_to(self.root)]
        files = self._imported(starts)
        data = {folder for file in self.changed if file.suffix != ".py" for folder in file.parents}
        return any(file in self._touched or file.parent in data for file in files)

    @functools.cached_property
    def _touched(self) -> frozenset[Path]:
        """All changed files, and the folders that contain them."""
        return self.changed.union(*(file.parents for file in self.changed))

    def _imported(self, starts: Sequence[Path]) -> set[Path]:
        """Return files and all files of the repository that they import, directly or indirectly.

        Deleted files cannot be found by name, so every deleted file counts as imported.
        """
        found: set[Path] = set()
        waiting = list(starts)
        while waiting:
            file = waiting.pop()
            if file not in found:
                found.add(file)
                waiting += self._imports(file, starts[0].parent)
        return found.union(self._gone() if starts else ())

    def _gone(self) -> Iterator[Path]:
        return (file for file in self.changed if file.suffix == ".py" and not file.exists())

    def _imports(self, file: Path, beginning: Path) -> list[Path]:
        roots = list(dict.fromkeys((beginning, self.folder, self.root, self.root / "src")))
        found = []
        if file not in self._names:
            self._names[file] = _names_imported(file)
        for level, name in self._names[file]:
            place = file
            for _ in range(level):
                place = place.parent
            for at in _prefixes(name) if name else ("",):
                module = self._module(at, [place] if level else roots)
                if module is not None and module.resolve().is_relative_to(self.root):
                    found.append(module.resolve())
        return found

    @staticmethod
    def _module(name: str, roots: Iterable[Path]) -> Path | None:
        for root in roots:
            place = root.joinpath(*name.split(".")) if name else root
            for file in (place.with_suffix(".py") if name else place / "__init__.py", place / "__init__.py"):
                if file.is_file():
                    return file
        return None


def _configs(place: Path) -> Iterator[Path]:
    """Yield the files of a model: its config or folder, and the pipeline that it is a component of."""
    place = place.resolve()
    yield place
    yield from (index for folder in place.parents[:2] if (index := folder / "model_index.json").exists())


def _names_imported(file: Path) -> tuple[tuple[int, str], ...]:
    """Return the level and the dotted name of each import, including those within functions."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            found += [(node.level, base + alias.name) for alias in node.names]
    return tuple(found)


def _prefixes(name: str) -> list[str]:
    """Return `a`, `a.b` and `a.b.c` for `a.b.c`. All are imported, unless the last one is an attribute."""
    parts = name.split(".")
    return [".".join(parts[: at + 1]) for at in range(len(parts))]
