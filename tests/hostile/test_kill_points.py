"""Every writer, killed or with an error at each of its system calls that write.

The old file or the new one is there, whole. Nothing else is left but what SECURITY.md names, and the next run
of the same command succeeds and leaves nothing at all.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from torch import nn

from fakexport.checking.lock import write_lock
from fakexport.checking.sweep import RunFile, SweepRecord, read_run
from fakexport.cli import main
from fakexport.files import new_file, new_folder
from tests.hostile.kill_points import CAN_TRACE, Ended, Fault, run_child
from tests.hostile.test_concurrent_writers import entry, session

pytestmark = pytest.mark.skipif(not CAN_TRACE, reason="calls are traced on Linux, on x86-64")

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
        self.register_buffer("table", torch.arange(400.0), persistent=False)

    def forward(self, x):
        return self.linear(x) + self.table[:2]

def factory():
    return Model().eval(), (torch.zeros(3, 4),)
"""
MEASURED = re.compile(rb"\d[\d.,]*(?: ?(?:ms|s|min|[KMGT]?i?B)\b)?")
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp(/.*)?")
Files = dict[str, bytes]


def files_in(folder: Path) -> Files:
    """The files below the folder; without numbers where a report has times."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {
        name: MEASURED.sub(b"0", content) if name.endswith((".html", ".json")) else content
        for name, content in found.items()
    }


def faults_of(work: Callable[[], str], folder: Path, begin: Files) -> Iterator[tuple[Ended, Fault, Files]]:
    """Yield how the work ended with each fault in turn, and the files then; each time from the beginning."""
    for fault in ("kill", "error"):
        at = 0
        while True:
            at += 1
            place(folder, begin)
            ended = run_child(work, at, fault)
            if len(ended.calls) < at:
                assert at > 1, "it has written nothing"
                break
            yield ended, fault, files_in(folder)


def place(folder: Path, files: Files) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def check(work: Callable[[], str], folder: Path, *, is_named: bool = False) -> None:
    """Try each fault; the folder has what the work needs, and old outputs or none.

    Args:
        work: What is done in a child.
        folder: Where it writes.
        is_named: Whether the output has a temporary name from the start.
    """
    begin = files_in(folder)
    whole = run_child(work)
    assert whole.code == 0, whole.said
    end = files_in(folder)
    for ended, fault, found in faults_of(work, folder, begin):
        at = f"{fault} at call {len(ended.calls)}, after {', '.join(ended.calls)}: {ended.said}"
        left = {match[1] for name in found if (match := TEMPORARY.fullmatch(name))}
        named = {name: content for name, content in found.items() if not TEMPORARY.fullmatch(name)}
        assert all(content in (begin.get(name), end.get(name)) for name, content in named.items()), at
        assert begin.keys() <= named.keys(), at
        assert len(left) <= (fault == "kill"), at
        assert is_named or not left or ended.calls[-1].startswith("rename"), at
        if found != begin:  # Else it is the first run again.
            again = run_child(work)
            assert again.code == 0, again.said
            assert files_in(folder) == end, at


def write(path: Path) -> str:
    with new_file(path) as file:
        file.write(b"new")
    return ""


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_file(old: bytes | None, tmp_path: Path) -> None:
    if old is not None:
        (tmp_path / "out").write_bytes(old)

    check(lambda: write(tmp_path / "out"), tmp_path)


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_file_where_none_is_without_a_name(
    old: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    if old is not None:
        (tmp_path / "out").write_bytes(old)

    check(lambda: write(tmp_path / "out"), tmp_path, is_named=True)


def write_folder(path: Path) -> str:
    if path.exists():  # A project that is there is the user's.
        return ""
    with new_folder(path) as folder:
        (folder / "a").write_bytes(b"new")
        (folder / "b").mkdir()
        (folder / "b" / "c").write_bytes(b"new")
    return ""


def test_a_folder(tmp_path: Path) -> None:
    check(lambda: write_folder(tmp_path / "out"), tmp_path, is_named=True)


def write_entry(path: Path) -> str:
    session(path, 1).end()
    return ""


@pytest.mark.parametrize("is_new", [True, False])
def test_a_lock(is_new: bool, tmp_path: Path) -> None:
    path = tmp_path / "fakexport.lock"
    write_lock(path, [] if is_new else [entry(100)])

    check(lambda: write_entry(path), tmp_path)


RECORDS = [
    SweepRecord(
        command=f"fakexport check a.py:f{number}",
        status="exports",
        reason="",
        seconds=1.0,
        peak_bytes=1,
        report={},
    )
    for number in range(3)
]


def sweep(path: Path) -> str:
    with closing(RunFile(path, resume=True)) as file:
        for each in RECORDS:
            if each.command not in file.records:
                file.add(each)
    return ""


def test_a_sweep_keeps_each_line_that_it_has_written(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert run_child(lambda: sweep(path)).code == 0
    end = files_in(tmp_path)

    for ended, fault, found in faults_of(lambda: sweep(path), tmp_path, {}):
        at = f"{fault} at call {len(ended.calls)}, after {', '.join(ended.calls)}: {ended.said}"
        assert end["run.jsonl"].startswith(found.get("run.jsonl", b"")), at
        is_kept = "write" in ended.calls[:-1]
        assert not is_kept or len(read_run(path)) == ended.calls[:-1].count("write"), at
        assert run_child(lambda: sweep(path)).code == 0
        assert files_in(tmp_path) == end, at


COMMANDS = {
    "export": "export m.py:factory -o out.pt2",
    "bind --link": "bind p.pt2 w.safetensors --link -o out.pt2",
    "source": "source p.pt2 -o out.py",
    "lock": "lock m.py:factory",
    "check": "check m.py:factory --html out.html --write json=out.json --write sarif=out.sarif",
    "plan": "plan m.py:factory --timeline out.json",
    "run": "run b.pt2 --inputs in.safetensors -o out.safetensors",
    "sweep-report": "sweep-report run.jsonl -o out",
}


def command(line: str, folder: Path) -> str:
    os.chdir(folder)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(line.split())
    assert code == 0, out.getvalue() + err.getvalue()
    return ""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Files:
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("made")
    (folder / "m.py").write_text(MODEL)
    save_file(nn.Linear(4, 2).state_dict(prefix="linear."), folder / "w.safetensors")
    save_file({"x": torch.zeros(3, 4)}, folder / "in.safetensors")
    sweep(folder / "run.jsonl")
    for line in ("export m.py:factory -o p.pt2", "bind p.pt2 w.safetensors -o b.pt2"):
        command(line, folder)
    return files_in(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command(name: str, made: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    place(tmp_path, made)
    command(COMMANDS[name], tmp_path)  # With its imports, once for all children.
    place(tmp_path, made)

    check(lambda: command(COMMANDS[name], tmp_path), tmp_path)
