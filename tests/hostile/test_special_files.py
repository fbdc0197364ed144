"""Every command that opens a file, given something else: it says so in one line, and waits for nothing."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors")
from safetensors.torch import save_file

import fakexport as fe
from fakexport.cli import main

MODEL = """
import torch

def factory():
    return torch.nn.Linear(4, 2).eval(), (torch.zeros(3, 4),)
"""


def missing(path: Path) -> None:
    pass


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_loop(path: Path) -> None:
    path.symlink_to(path.name)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # Its path is bounded by 108 bytes.


def unreadable(path: Path) -> None:
    path.write_bytes(b"PK")
    path.chmod(0)


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": device,
    "directory": Path.mkdir,
    "loop": link_loop,
    "socket": listening,
    "missing": missing,
}
if os.geteuid():  # The superuser may read anything.
    KINDS["unreadable"] = unreadable

# X is the file; its ending decides which reader gets it.
READING = {
    "run X.pt2",
    "run X.onnx",
    "run X.pte",
    "run X",
    "run X.pt2 w.safetensors",
    "run p.pt2 X.safetensors --inputs in.safetensors",
    "run p.pt2 X.pt --inputs in.safetensors",
    "run p.pt2 X.safetensors.index.json --inputs in.safetensors",
    "run b.pt2 --inputs X.safetensors",
    "run b.pt2 --inputs X.pt",
    "run b.pt2 --inputs in.safetensors --library X.so",
    "inspect X.pt2",
    "inspect X.py:factory",
    "inspect m.py:factory --device-map X.json",
    "diff X.pt2 p.pt2",
    "retarget X.pt2 --to cuda:0 -o out.pt2",
    "source X.pt2",
    "bundle one=p.pt2 two=X.pt2 -o out.pt2",
    "bind X.pt2 w.safetensors -o out.pt2",
    "bind p.pt2 X.safetensors -o out.pt2",
    "bind p.pt2 X.bin.index.json --link -o out.pt2",
    "verify-weights X.pt2",
    "verify-weights X.py:factory w.safetensors",
    "compile X.pt2 --to aoti -o out.pt2",
    "compare m.py:factory X.pt2",
    "compare m.py:factory b.pt2 --inputs X.safetensors",
    "check X.py:factory",
    "check hf:X.json",
    "check hf:./X",
    "check m.py:factory --device-map X.json",
    "check m.py:factory --library X.so",
    "check m.py:factory --library ./X",
    "export X.py:factory -o out.pt2",
    "sweep X.yaml -o out.jsonl",
    "sweep-report X.jsonl -o out",
    "sweep-compare X.jsonl X.jsonl",
}
WRITING = {
    "export m.py:factory -o X.pt2",
    "retarget p.pt2 --to cuda:0 -o X.pt2",
    "source p.pt2 -o X.py",
    "bundle one=p.pt2 -o X.pt2",
    "bind p.pt2 w.safetensors -o X.pt2",
    "run b.pt2 --inputs in.safetensors -o X.safetensors",
    "compile b.pt2 --to onnx -o X.onnx",
    "sweep zoo.yaml -o X.jsonl",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program without weights and one with them, a checkpoint, inputs, and the source of the model."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    save_file(nn.Linear(4, 2).state_dict(), folder / "w.safetensors")
    save_file({"input": torch.zeros(3, 4)}, folder / "in.safetensors")
    fe.save(fe.export(lambda: nn.Linear(4, 2).eval(), (torch.zeros(3, 4),)), folder / "p.pt2")
    fe.save(fe.bind(folder / "p.pt2", folder / "w.safetensors"), folder / "b.pt2")
    (folder / "m.py").write_text(MODEL)
    (folder / "zoo.yaml").write_text("models: [m.py:factory]\n")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same files in a folder of their own, which is the current one."""
    for file in made.iterdir():
        if file.is_file():
            (tmp_path / file.name).hardlink_to(file)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(command: str, file: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> str | None:
    """What is wrong with how the command says that there is no file."""
    KINDS[kind](file)
    try:
        code = main(command.replace("X", "x").split())
    finally:
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        else:
            file.unlink(missing_ok=True)
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if not line.endswith("...")]
    if code != 2 or out or len(said) != 1 or not said[0].startswith("error: ") or "FE001" in err:
        return f"{kind}: exit code {code}, {out}{err}"
    return None


def placed(command: str, folder: Path) -> Path:
    name = next(word for word in command.replace(":", " ").replace("=", " ").split() if "X" in word)
    return folder / name.removeprefix("./").replace("X", "x")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", sorted(READING))
def test_what_is_no_file_is_one_line_and_exit_code_2(command, folder, capsys) -> None:
    faults = [call(command, placed(command, folder), kind, capsys) for kind in KINDS]

    assert not any(faults), "\n".join(filter(None, faults))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "command",
    [pytest.param(line, marks=pytest.mark.slow if "onnx" in line else ()) for line in sorted(WRITING)],
)
def test_nothing_but_a_file_is_replaced(command, folder, capsys) -> None:
    faults = [
        call(command, placed(command, folder), kind, capsys)
        for kind in ("pipe", "device", "directory", "socket")
    ]

    assert not any(faults), "\n".join(filter(None, faults))


@pytest.mark.parametrize("command", sorted(WRITING))
def test_no_name_at_all_is_one_line_and_exit_code_2(command, folder, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Of the model's module, next to it.
    before = sorted(folder.iterdir())

    code = main([word if "X" not in word else "" for word in command.split()])

    said = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("...")]
    assert code == 2
    assert len(said) == 1
    assert said[0].startswith("error: ")
    assert "FE001" not in said[0]
    assert sorted(folder.iterdir()) == before


DEEP = b"[" * 200_000
SAFETENSORS = (len(DEEP) + 1).to_bytes(8, "little") + b"{" + DEEP


@pytest.mark.parametrize(
    ("command", "content"),
    [
        ("check m.py:factory --device-map X.json", DEEP),
        ("inspect m.py:factory --device-map X.json", b'{"a":' * 100_000),
        ("check hf:X.json", DEEP),
        ("check hf:X.json", b'{"model_type": "gpt2", "a":' + b"[" * 900 + b"]" * 900 + b"}"),
        ("verify-weights p.pt2 X.safetensors.index.json", DEEP),
        ("verify-weights p.pt2 X.safetensors", SAFETENSORS),
        ("run b.pt2 --inputs X.safetensors", SAFETENSORS),
        ("bind p.pt2 X.bin.index.json -o out.pt2", b'{"weight_map":' * 100_000),
        ("sweep-report X.jsonl -o out", DEEP + b"\n"),
    ],
)
def test_deep_json_is_one_line_and_exit_code_2(command, content, folder, capsys) -> None:
    placed(command, folder).write_bytes(content)

    code = main(command.replace("X", "x").split())

    said = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("...")]
    assert code == 2
    assert len(said) == 1
    assert said[0].startswith("error: ")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_cache_that_others_can_write_to_is_refused_before_anything_is_compiled(folder, capsys) -> None:
    (folder / "cache").mkdir()
    (folder / "cache").chmod(0o777)

    code = main(["compile", "p.pt2", "--to", "aoti", "-o", "out.pt2", "--cache", "cache"])

    said = capsys.readouterr().err
    assert code == 2
    assert said.splitlines()[-1] == (
        f"error: code from the cache is executed, so only you may have write access: {folder}/cache is "
        f"writable by everyone (mode 777): run `chmod go-w {folder}/cache`, or pass a folder of your own"
    )
    assert not (folder / "out.pt2").exists()
