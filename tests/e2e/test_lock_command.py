"""`fakexport lock` and `check --locked`: known changes of a model, each found and named at its line."""

import json
import shlex

import pytest

from fakexport.deploy.coverage.tensorrt import table
from tests.command_line import fakexport_here as fakexport

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.dtype = torch.float32

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return (x * 2).to(self.dtype)


def factory():
    return Model(), (torch.zeros(3, 4),)
"""
TABLE = """\
[tool.fakexport]
sources = ["model.py:factory"]
target = "H100"
dynamic = "x.0=2..64"
"""
# What is edited: old and new text, what is said of it, and the line of the model that is named.
EDITS = {
    "an operator": ("torch.relu(layer(x))", "torch.tanh(layer(x))", "aten.relu.default 3 -> 0", 13),
    "a range": ("super().__init__()", "super().__init__()", "ranges: s0: [2, 64] -> [2, 32]", 13),
    "a dtype": ("torch.float32", "torch.bfloat16", "dtype float32 -> bfloat16", 14),
    "a constant": ("return (x * 2)", "return (x * 2 + x.new_ones(4))", "aten.new_ones.default 0 -> 1", 14),
    "a value of a constant": ("(x * 2)", "(x * torch.tensor([2.0], device=x.device))", "constants: ", 14),
    "the memory of weights": (
        "nn.Linear(4, 4)",
        "nn.Linear(4, 4, bias=False)",
        "weights on cuda:0: 240 B",
        13,
    ),
}


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "pyproject.toml").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def the_lock(tmp_path_factory):
    """The lock of the unchanged model."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "model.py").write_text(MODEL)
    (folder / "pyproject.toml").write_text(TABLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        said = fakexport("lock", "--no-progress").stderr.splitlines()
    assert said[0].startswith("added: model.py:factory for H100: exports, sha256:")
    return (folder / "fakexport.lock").read_text()


@pytest.fixture
def locked(repository, the_lock):
    (repository / "fakexport.lock").write_text(the_lock)
    return repository


def edited(repository, old, new):
    assert old in MODEL
    (repository / "model.py").write_text(MODEL.replace(old, new))


def test_an_unchanged_model_passes_and_is_locked_with_the_same_bytes(locked, the_lock):
    assert fakexport("check", "--locked", "--no-progress").stdout.endswith("1 source: 1 clean\n")

    said = fakexport("lock", "--no-progress").stderr

    assert [line.partition(":")[0] for line in said.splitlines()] == ["same", "wrote fakexport.lock"]
    assert (locked / "fakexport.lock").read_text() == the_lock


def test_lines_that_move_are_no_change(locked):
    edited(locked, "import torch\n", "# A comment.\nimport torch\n")

    fakexport("check", "--locked", "--no-progress")


@pytest.mark.parametrize("edit", EDITS)
def test_a_known_change_is_found_and_named_at_its_line(edit, locked):
    old, new, said, line = EDITS[edit]
    edited(locked, old, new)
    asked = ["--dynamic", "x.0=2..32"] if edit == "a range" else []

    done = fakexport("check", "--locked", "--no-progress", "--format", "json", *asked, code=1)

    (report,) = json.loads(done.stdout)["reports"]
    (found,) = [found for found in report["diagnostics"] if found["code"] == "FE003"][:1]
    assert any(said in note for note in found["notes"]), found["notes"]
    assert "fakexport.lock" in {difference["first"] for difference in report["differences"]}
    if edit not in ("a range",):
        assert line in [label["span"]["line"] for label in found["labels"]], found["labels"]


def test_equal_operators_in_another_order_are_named_at_their_line(repository):
    model = MODEL.replace("return (x * 2).to(self.dtype)", "a, b = x.sin(), x.cos()\n        return a + b")
    assert model != MODEL
    (repository / "model.py").write_text(model)
    fakexport("lock", "--no-progress")
    # Of another length: what Python compiled is told by size and second.
    swapped = model.replace("a, b = x.sin(), x.cos()", "(b, a) = x.cos(), x.sin()")
    (repository / "model.py").write_text(swapped)

    said = fakexport("check", "--locked", "--no-progress", "--format", "json", code=1).stdout

    (found,) = json.loads(said)["reports"][0]["diagnostics"]
    assert found["code"] == "FE003"
    assert found["notes"] == ["the nodes are the same, but in a different order"]
    (label,) = found["labels"]
    assert label["span"]["line"] == 14
    assert label["message"] == "from this line on, the nodes are in a different order: 1 x aten.cos.default"


def test_operators_that_are_gone_are_named_where_their_module_is_now(locked):
    edited(locked, "torch.relu(layer(x))", "layer(x)")

    said = fakexport("check", "--locked", "--no-progress", "--format", "json", code=1).stdout

    (found,) = [one for one in json.loads(said)["reports"][0]["diagnostics"] if one["code"] == "FE003"]
    assert any("aten.relu.default 3 -> 0" in note for note in found["notes"])
    assert found["labels"][0]["message"] == "removed: 3 x aten.relu.default"


def test_the_printed_command_accepts_the_change(locked, the_lock):
    edited(locked, "torch.relu", "torch.tanh")
    text = fakexport("check", "--locked", "--no-progress", code=1).stdout
    (command,) = {line.partition("run: ")[2] for line in text.splitlines() if "= run: " in line}

    fakexport(*shlex.split(command)[1:])

    assert (locked / "fakexport.lock").read_text() != the_lock
    fakexport("check", "--locked", "--no-progress")


def test_a_model_without_an_entry_and_an_entry_without_a_model_fail(locked):
    (locked / "other.py").write_text(MODEL)
    (locked / "pyproject.toml").write_text(TABLE.replace("model.py", "other.py"))

    done = fakexport("check", "--locked", "--no-progress", code=1)

    assert "error[FE002]: model has no entry in fakexport.lock" in done.stdout
    assert "fakexport.lock has no entry for other.py:factory on H100 with dynamic x.0=2..64" in done.stdout
    assert done.stderr == (
        "error: fakexport.lock: model.py:factory for H100 has an entry but is no longer checked; run "
        "`fakexport lock` to remove the entry\n"
    )

    fakexport("lock", "--no-progress")
    assert "model.py" not in (locked / "fakexport.lock").read_text()
    fakexport("check", "--locked", "--no-progress")


def test_one_source_is_compared_and_updated_alone(locked):
    (locked / "other.py").write_text(MODEL)
    fakexport("check", "other.py:factory", "--update-lock", "--no-progress")
    edited(locked, "torch.relu", "torch.tanh")

    fakexport("check", "other.py:factory", "--locked", "--no-progress")
    fakexport("check", "model.py:factory", "--locked", "--no-progress", code=1)


def test_a_source_is_the_same_from_a_folder_below(locked, monkeypatch):
    (locked / "below").mkdir()
    monkeypatch.chdir(locked / "below")

    fakexport("check", "../model.py:factory", "--locked", "--no-progress", "--dynamic", "x.0=2..64")


def test_other_versions_are_a_note_where_the_program_is_the_same(locked, monkeypatch):
    monkeypatch.setattr("fakexport.checking.target_answer.__version__", "9.9.9")

    done = fakexport("check", "--locked", "--no-progress")

    assert (
        done.stderr == "note: fakexport.lock was written with different versions: fakexport 0.1.0 -> 9.9.9\n"
    )


def test_another_answer_of_a_runtime_is_a_change(repository, monkeypatch):
    (repository / "pyproject.toml").write_text(TABLE + 'runtime = "tensorrt"\n')
    fakexport("lock", "--no-progress")
    before = table()
    converters = {name: found for name, found in before["converters"].items() if "relu" not in name}
    later = {**before, "version": "99.0", "converters": converters}

    fakexport("check", "--locked", "--no-progress")
    monkeypatch.setattr("fakexport.deploy.coverage.tensorrt.table", lambda: later)
    said = fakexport("check", "--locked", "--no-progress", code=1).stdout

    assert "1 operator falls back to PyTorch: aten.relu.default" in " ".join(said.split())
    assert f"torch-tensorrt {before['version']} -> 99.0" in " ".join(said.split())
    fakexport("lock", "--no-progress")
    fakexport("check", "--locked", "--no-progress")


@pytest.mark.parametrize("content", [None, "<<<<<<< HEAD\n", "format = 9\n"])
def test_a_lock_that_cannot_be_used_is_one_line_before_any_check(content, locked):
    lock = locked / "fakexport.lock"
    lock.unlink() if content is None else lock.write_text(content)

    done = fakexport("check", "--locked", code=2)

    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "fakexport lock`" in line
    if content == "<<<<<<< HEAD\n":
        fakexport("lock", "--no-progress")
        fakexport("check", "--locked", "--no-progress")


def test_a_source_that_is_not_checked_keeps_its_entry(locked, the_lock):
    (locked / "model.py").write_text("import absent_package\n")

    done = fakexport("lock", "--no-progress", code=2)

    assert "fakexport.lock" not in done.stderr
    assert (locked / "fakexport.lock").read_text() == the_lock


@pytest.mark.parametrize("command", [("check", "--update-lock"), ("lock",)])
def test_comparing_and_replacing_at_once_is_refused(command, locked):
    assert "use only one of them" in fakexport(*command, "--locked", code=2).stderr


def test_lock_prints_the_report_that_check_prints(locked):
    checked = fakexport("check", "--update-lock", "--no-progress", "--format", "sarif")
    written = fakexport("lock", "--no-progress", "--format", "sarif")

    assert (written.stdout, written.stderr) == (checked.stdout, checked.stderr)


RANKS = """\
from tests.parallel_models import factory_of

factory = factory_of("qwen3", num_hidden_layers=1, vocab_size=100, intermediate_size=96)
"""


@pytest.mark.slow
def test_a_change_of_another_rank_than_the_first_is_found(tmp_path, monkeypatch):
    """Of 95 features rank 0 has 48, as it has of 96."""
    pytest.importorskip("transformers")
    asked = ("model.py:factory", "--parallel", "tp=2", "--target", "2xH100", "--no-progress")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(RANKS)
    fakexport("lock", *asked)
    fakexport("check", "--locked", *asked)
    (tmp_path / "model.py").write_text(RANKS.replace("96", "95"))

    done = fakexport("check", "--locked", *asked, "--format", "json", code=1)

    (found,) = [found for found in json.loads(done.stdout)["diagnostics"] if found["code"] == "FE003"]
    assert found["notes"] == ["the programs of these ranks changed: 1"]
