"""docs/archive_format.md is enough to read an archive: a reader in JavaScript that uses only this page."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from fakexport.archive import load_bundle, save
from fakexport.archive.codec.value_reader import DTYPES
from fakexport.files.container import ArchiveError, read_container
from tests.unit.archive.programs import tiny
from tools import archive_vectors
from tools.archive_vectors import FOLDER, FOUND, VECTORS, damaged, found

READER = Path(__file__).with_name("archive_reader.mjs")
PAGE = FOLDER.parents[1] / "archive_format.md"
EXPECTED = json.loads(FOUND.read_text())
VALID, INVALID = EXPECTED["valid"], EXPECTED["invalid"]

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which runs the reader")


def read(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["node", READER, path], capture_output=True, text=True, check=False)


def as_json(path: Path):
    return json.loads(json.dumps(found(path)))


@needs_node
@pytest.mark.parametrize("name", VALID)
def test_the_reader_finds_what_is_in_a_vector(name):
    done = read(FOLDER / name)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == VALID[name]


@needs_node
@pytest.mark.parametrize("name", INVALID)
def test_the_reader_rejects_a_damaged_vector(name):
    done = read(FOLDER / name)

    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("name", VALID)
def test_this_version_reads_the_vectors_of_older_versions(name):
    assert as_json(FOLDER / name) == VALID[name]


@pytest.mark.parametrize("name", INVALID)
def test_this_version_rejects_a_damaged_vector(name):
    with pytest.raises(ArchiveError):
        load_bundle(FOLDER / name)


def test_the_vectors_contain_the_values_of_the_models():
    constants = VALID["plain.pt2"]["methods"]["model"]["constants"]
    eager, _ = archive_vectors.tied()
    computed, _ = archive_vectors.computed()

    for name in ("low", "turned", "mask"):
        assert constants[name]["values"] == getattr(eager, name).flatten().tolist()
    about = VALID["computed.pt2"]["methods"]["model"]["computed"]
    assert about == {name: getattr(computed, name).flatten().tolist() for name in ("ones", "table")}
    weights = VALID["bound.pt2"]["methods"]["model"]["weights"]
    assert weights["first.weight"]["values"] == (torch.arange(16.0) / 8).tolist()
    assert VALID["linked.pt2"]["methods"]["model"]["weights"] == weights


@pytest.mark.filterwarnings("ignore:targets and sources share a process", "ignore:the program is incomplete")
@pytest.mark.parametrize("name", VECTORS)
def test_a_new_archive_contains_the_same_as_its_vector(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"{name}.pt2"

    VECTORS[name](path)

    assert as_json(path) == VALID[path.name]


def test_the_damage_is_what_the_vectors_say():
    made = damaged(FOLDER / "plain.pt2")

    assert {f"{name}.pt2": fault for name, (fault, _) in made.items()} == INVALID
    for name, (_, content) in made.items():
        assert (FOLDER / f"{name}.pt2").read_bytes() == content


def test_the_page_names_every_vector_and_every_dtype():
    page = PAGE.read_text()

    assert set(re.findall(r"\(site/vectors/([\w.]+)\)", page)) == {path.name for path in FOLDER.iterdir()}
    assert not [name for name in VALID if name not in page]
    constants = page.partition("## Constants")[2]
    listed = {int(code): dtype for code, dtype in re.findall(r"\| (\d+) \| `(\w+)`", constants)}
    assert listed == DTYPES


def test_the_reader_knows_the_fields_that_the_page_lists():
    reader, page = READER.read_text(), PAGE.read_text()

    for key, name in {"manifest": "Manifest", "method": "MethodManifest"}.items():
        known = re.search(rf"{key}: (.*?),\n", reader, re.DOTALL)[1]
        section = page.partition(f"### `{name}`")[2].partition("\n### ")[0]
        assert re.findall(r"\w+", known) == re.findall(r"^\| `(\w+)`", section, re.MULTILINE)


@needs_node
@pytest.mark.parametrize("name", ["gpt2", "whisper", "llama4"])
def test_the_reader_finds_what_is_in_the_program_of_a_model(name, tmp_path):
    path = tmp_path / "model.pt2"
    save(tiny(name, tmp_path, "H100"), path)

    done = read(path)

    assert done.returncode == 0, done.stderr
    (mine,), (theirs,) = json.loads(done.stdout)["methods"].values(), as_json(path)["methods"].values()
    functions = {name for name in mine["operators"] if not name.startswith("torch.ops.") or "higher" in name}
    for function in functions:  # The document has Python functions too, and lists symbols that no size uses.
        del mine["operators"][function]
    used = {size for value in mine["inputs"] + mine["outputs"] for size in value.get("shape", ())}
    mine["ranges"] = {symbol: bounds for symbol, bounds in mine["ranges"].items() if symbol in used}
    assert mine == theirs


@pytest.mark.parametrize("name", VALID)
def test_a_vector_does_not_name_the_machine_that_wrote_it(name):
    with read_container(FOLDER / name) as container:
        text = b"".join(map(container.record, container.names)).decode("latin-1")

    assert not re.search(r"(?<![\w.])/[a-z]+/", text)
