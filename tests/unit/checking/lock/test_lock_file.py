"""`fakexport.lock`: the same bytes each time, and one line for each way in which it is damaged."""

import tomllib
from dataclasses import replace

import pytest

from fakexport.checking.lock import LockEntry, LockFileError, read_lock, write_lock
from fakexport.exporting.program import ConstantLine, Fingerprint, NodeLine, PortLine

PROGRAM = Fingerprint(
    digest="sha256:00",
    node_count=12,
    nodes=(
        NodeLine(3, "aten.linear.default", "layers.*", "(%, %, 'a\"\\\x7f\n')", "float32[4]{1} cpu", "0a"),
    ),
    ports=(PortLine(1, "input", "buffer", "naïve 𝔘", "float32[4]{1} cpu", "persistent"),),
    constants=(ConstantLine(2, "k", "float32[4]{1} cpu", "ff"),),
    structures=("TreeSpec(tuple)", "*"),
    ranges={"s0": "[2, 8]"},
    properties=("guard x.shape[0] % 2 == 0", "tie a = b"),
)
EXPORTS = LockEntry(
    source="model.py:f",
    target="H100",
    options={"dtype": "bfloat16"},
    topology="H100-80GB",
    verdict="exports",
    codes=("FE503",),
    versions={"torch": "2.13.0"},
    weights={"cuda:0": 256},
    program=PROGRAM,
)
MORE = replace(
    EXPORTS,
    options={"parallel": "tp=2"},
    ranks={"1": "sha256:01"},
    runtimes={"onnx": "taken", "executorch:xnnpack": "not"},
)
FAILS = replace(EXPORTS, source="bad.py:f", verdict="fails at capture", program=None, weights={})


@pytest.fixture
def path(tmp_path):
    write_lock(tmp_path / "fakexport.lock", [EXPORTS, FAILS])
    return tmp_path / "fakexport.lock"


def test_what_is_written_is_read(path):
    assert read_lock(path) == {entry.key: entry for entry in (EXPORTS, FAILS)}


def test_the_ranks_of_a_parallel_model_and_the_answers_of_runtimes_are_read(tmp_path):
    write_lock(tmp_path / "fakexport.lock", [MORE, EXPORTS])

    assert read_lock(tmp_path / "fakexport.lock")[MORE.key] == MORE


def test_the_order_of_the_checks_does_not_change_the_bytes(path):
    before = path.read_bytes()

    write_lock(path, [FAILS, EXPORTS])

    assert path.read_bytes() == before
    assert tomllib.loads(before.decode())["entry"][1]["operators"] == {"aten.linear.default": 3}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"exports"', '"fails"', "entry[1]: the entry of model.py:f for H100 was changed after"),
        ("[3, ", "[4, ", "was changed after it was written"),
        ("[2, 8]", "[2, 16]", "was changed after it was written"),
        ('options = {dtype = "bfloat16"}', "options = {}", "was changed after it was written"),
        ("node_count = 12\n", "", "node_count: this field is missing"),
        ("node_count = 12", 'node_count = "12"', "node_count: expected an integer, got str"),
        ("node_count = 12", "node_count = 12\nmore = 1", "the field 'more' is unknown"),
        ("format = 1", "format = 2", "expected format version 1, got 2"),
        ("format = 1", "format = ", "not TOML"),
        ('verdict = "exports"', '<<<<<<< HEAD\nverdict = "exports"', ": merge conflict"),
        ("[[entry]]", "=======\n[[entry]]", ": merge conflict"),
        ('source = "bad.py:f"', 'source = "\udcff"', "not UTF-8"),
    ],
)
def test_a_lock_that_is_not_as_it_was_written_is_refused_in_one_line(path, old, new, said):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode("utf-8", "surrogateescape"))

    with pytest.raises(LockFileError) as refused:
        read_lock(path)

    assert said in str(refused.value)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith("delete the file and run `fakexport lock`")


def test_a_merge_conflict_is_named_with_its_line(path):
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:7], "<<<<<<< HEAD\n", *lines[7:]]), encoding="utf-8")

    with pytest.raises(LockFileError, match=r"fakexport\.lock:8: merge conflict"):
        read_lock(path)


def test_an_entry_twice_is_refused(path):
    text = path.read_text(encoding="utf-8")
    path.write_text(text + text[text.index("[[entry]]") :], encoding="utf-8")

    with pytest.raises(LockFileError, match="duplicate entry"):
        read_lock(path)


def test_no_lock_says_how_to_write_one(tmp_path):
    with pytest.raises(LockFileError, match="create it with `fakexport lock`"):
        read_lock(tmp_path / "fakexport.lock")
