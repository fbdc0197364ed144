"""TOML and YAML that users open but did not write: one line and exit code 2, within the limits."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakexport.checking.lock import LockFileError, read_lock
from fakexport.checking.sweep.zoo_file import ZooFileError, read_zoo
from fakexport.cli.project_file import ProjectFileError, project_file_of
from fakexport.emulation.devices.custom_profiles import ProfileError, device_profiles
from fakexport.files.documents import DocumentError, parse_toml, parse_yaml
from tests.command_line import fakexport_here

MODEL = "import torch\n\ndef model():\n    return torch.nn.Linear(3, 2), (torch.zeros(2, 3),)\n"
DIGITS = "9" * 6000
TOML = {
    "deep": "a = " + "[" * 3000 + "]" * 3000,
    "deep tables": "a = " + "{a = " * 3000 + "1" + "}" * 3000,
    "digits": f"a = {DIGITS}",
    "not UTF-8": "a = '\udcff'",
    "not TOML": "a = = 1",
    "dotted keys": "\n".join(f"{'a.' * 3000}k{row} = 1" for row in range(300)),
    "a date that is none": "a = 2001-99-99",
    "infinity": "a = inf",
}
YAML = {
    "deep": "[" * 3000 + "]" * 3000,
    "digits": f"models: {DIGITS}",
    "a tag that runs code": "models: !!python/object/apply:os.system ['true']",
    "a tag that does not fit": "models: !!int x",
    "a date that is none": "models: 2001-99-99",
    "many checks": "models: [a.py:f]\ntargets: [" + "cpu," * 200 + "]\ndynamic: [" + "static," * 200 + "]",
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "\n".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "an unhashable key": "? [a]\n: b",
    "a null character": 'models: ["a\\0.py:f"]',
    "an option": "models: [--help]",
    "not UTF-8": "models: '\udcff'",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(name: str, content: str) -> None:
    Path(name).write_bytes(content.encode(errors="surrogateescape"))


def refused(*arguments: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = fakexport_here(*arguments, code=2)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "FE001" not in done.stderr
    assert len(done.stderr) < 1000
    assert grown < 1 << 20  # KiB


@pytest.mark.parametrize("content", TOML.values(), ids=TOML)
class TestToml:
    def test_a_project(self, content: str, folder: Path) -> None:
        written("pyproject.toml", f"[tool.fakexport]\n{content}\n")
        refused("check", "model.py:model")

    def test_profiles(self, content: str, folder: Path) -> None:
        written("profiles.toml", f"[H100-X]\nbase = 'H100'\n{content}\n")
        refused("check", "model.py:model", "--profiles", "profiles.toml")

    def test_a_lock(self, content: str, folder: Path) -> None:
        written("fakexport.lock", content)
        refused("check", "model.py:model", "--locked")


@pytest.mark.parametrize("content", YAML.values(), ids=YAML)
def test_a_zoo(content: str, folder: Path) -> None:
    written("ZOO.yaml", content)
    refused("sweep", "ZOO.yaml", "-o", "out.jsonl")


def test_what_yaml_says_of_an_unassigned_character_can_be_shown() -> None:
    with pytest.raises(DocumentError) as caught:
        parse_yaml("models: [a.py:f]\ntargets: [cpu]\U000cb592out: 3".encode())

    assert str(caught.value).isprintable()


@pytest.mark.parametrize("source", ["'a\\u0000.py:f'", "'--help'", f"'a.py:{'f' * 5000}'", "1", "[[]]"])
def test_a_source_of_a_project(source: str, folder: Path) -> None:
    quoted = source.replace("'", '"')
    written("pyproject.toml", f"[tool.fakexport]\nsources = [{quoted}]\n")
    done = fakexport_here("check", code=2)

    assert "FE001" not in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--dynamic", f"input.0=1..{DIGITS}"],
        ["--dynamic", f"input.{DIGITS}"],
        ["--target", f"{DIGITS}xH100"],
        ["--input", f"input=float32[{DIGITS}]"],
        ["--parallel", f"tp={DIGITS}"],
        ["--assume", f"model.py:{DIGITS}=True"],
        ["--assume", f"model.py:3={DIGITS}"],
        ["--workload", "prefill", "--max-cache-len", DIGITS],
    ],
    ids=lambda options: options[0],
)
def test_an_option_with_thousands_of_digits(options: list[str], folder: Path) -> None:
    done = fakexport_here("check", "model.py:model", *options, code=2)

    assert done.stderr.startswith("error: ")
    assert "FE001" not in done.stderr


SCALARS = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=20),
    st.sampled_from(
        [DIGITS, "2001-99-99", "!!int x", "&a", "*a", "=", "[", "]", "{", "}", '"""', "1e999", "0x"]
    ),
)
KEYS = st.sampled_from(
    [
        "tool",
        "fakexport",
        "sources",
        "target",
        "models",
        "targets",
        "timeout",
        "memory",
        "format",
        "entry",
        "base",
    ]
)
LINES = st.lists(
    st.tuples(KEYS, st.sampled_from([" = ", ": ", ".", ":\n  - ", " = [", "]\n["]), SCALARS), max_size=12
).map(lambda parts: "\n".join(f"{key}{sign}{value}" for key, sign, value in parts))


@settings(max_examples=150)
@given(content=LINES, head=st.sampled_from(["", "[tool.fakexport]\n", "[[entry]]\n", "models:\n"]))
def test_any_text_is_read_or_refused(
    content: str, head: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("documents")
    text = (head + content).encode(errors="replace")
    for parse in (parse_toml, parse_yaml):
        refused_in_a_line(parse, text, DocumentError)
    for name, read, fault in (
        ("fakexport.lock", read_lock, LockFileError),
        ("ZOO.yaml", read_zoo, ZooFileError),
        ("profiles.toml", profiles_of, ProfileError),
        ("pyproject.toml", project_of, ProjectFileError),
    ):
        (folder / name).write_bytes(text)
        refused_in_a_line(read, folder / name, fault)


def refused_in_a_line(read: Callable[[Any], object], given: Any, fault: type[Exception]) -> None:
    error = None
    try:
        read(given)
    except fault as raised:
        error = raised
    assert error is None or "\n" not in str(error)


def profiles_of(path: Path) -> None:
    with device_profiles(path):
        pass


def project_of(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)
        project_file_of(SimpleNamespace(meta={}))  # type: ignore[arg-type]
