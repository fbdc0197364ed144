"""The C++ program refuses the indexes that Python refuses: one line each, and never an abort."""

import os
from pathlib import Path

import pytest
import torch

from fakexport.archive.weights import CheckpointError, open_checkpoint
from tests.cpp_runner import Runner
from tests.e2e.compiled_models import mlp
from tests.shards import INDEX, save_index

safetensors = pytest.importorskip("safetensors.torch")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cpp_runner")]


@pytest.fixture
def folder(tmp_path):
    """Shards without an index."""
    folder = tmp_path / "checkpoint"
    (folder / "folder.safetensors").mkdir(parents=True)
    for shard, names in (("s1", "a"), ("s2", "bc"), ("s3", "ad")):
        tensors = {name: torch.zeros(1) for name in names}
        safetensors.save_file(tensors, folder / f"{shard}.safetensors")
    return folder


def refusals(run: Runner, folder: Path) -> tuple[str, str]:
    """What the C++ program says of the folder, and what Python says."""
    inputs = folder.parent / "in.safetensors"
    safetensors.save_file(mlp().inputs, inputs)
    with pytest.raises(CheckpointError) as of_python:
        open_checkpoint(folder)
    return run.refusal("--inputs", inputs, weights=folder), str(of_python.value)


class TestHostileIndexes:
    @pytest.mark.parametrize(
        "weight_map",
        [
            {"a": "missing.safetensors"},
            {"a": "../in.safetensors"},
            {"a": "/etc/model.safetensors"},
            {"a": "C:model.safetensors"},
            {"a": ".model.safetensors"},
            {"a": "sub/model.safetensors"},
            {"a": "folder.safetensors"},
            {"a": INDEX},
            {"a": "model.bin"},
            {"a": ""},
            {},
            [],
            "s1.safetensors",
            None,
            {"b": "s1.safetensors"},
            {"a": "s1.safetensors", "b": "s1.safetensors"},
            {"b": "s2.safetensors"},
            {"a": "s1.safetensors", "b": "s2.safetensors", "c": "s1.safetensors"},
            {"a": "s1.safetensors", "d": "s3.safetensors"},
        ],
        ids=str,
    )
    def test_what_python_refuses_is_refused_in_its_words(self, weight_map, run, folder):
        index = save_index(folder, weight_map)

        of_cpp, of_python = refusals(run, folder)

        assert of_cpp == f"{index}{of_python.removeprefix(INDEX)}" or (
            of_cpp == f"{index}: {of_python}" and not of_python.startswith(INDEX)
        )

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "not valid JSON: expected a value at byte 0"),
            (b"[]", "expected an object"),
            (b"\x93NUMPY", "not valid JSON: expected a value"),
            (b'{"weight_map": {"a": "s1.safetensors"', "not valid JSON: expected '}' at byte 37"),
            (b'{"weight_map": {"a": "s1.safetensors"}} x', "text after the value"),
            (b'{"weight_map": {"a": "s1.safetensors", "a": "s2.safetensors"}}', "'a' occurs twice"),
            (b'{"weight_map": {"a": "s1.safetensors"}, "weight_map": {}}', "'weight_map' occurs twice"),
            (b'{"weight_map": {"a": 3}}', "'a': expected a string"),
            (b'{"weight_map": {"a": null}}', "'a': expected a string"),
            (b'{"weight_map": {"a": ["s1.safetensors"]}}', "'a': expected a string"),
            (
                b'{"weight_map": {"a": "x\\\\model.safetensors"}}',
                "'x\\model.safetensors' is not in the folder",
            ),
            (
                b'{"weight_map": {"a": "s\\u00001.safetensors"}}',
                "'s?1.safetensors' is not a valid shard name",
            ),
            (b'{"weight_map": {"a": "s\\n1.safetensors"}}', "'s?1.safetensors' is not a valid shard name"),
            (
                b'{"weight_map": {"a": "s\\u009b1.safetensors"}}',
                "'s?1.safetensors' is not a valid shard name",
            ),
            (
                b'{"weight_map": {"a": "s\\u202e1.safetensors"}}',
                "'s?1.safetensors' is not a valid shard name",
            ),
            (b'{"weight_map": {"a": "s\xff1.safetensors"}}', "bytes that are not UTF-8"),
            (b'{"weight_map": {"a": "' + b"s" * 300 + b'.safetensors"}}', "s...' is missing"),
            (b'{"weight_map": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "more than 64 levels"),
            (b'{"metadata": {"total_size": NaN}, "weight_map": {"a": "s1.safetensors"}}', "expected a value"),
        ],
    )
    def test_text_that_is_no_index_is_one_line(self, content, message, run, folder):
        (folder / INDEX).write_bytes(content)

        refusal, _ = refusals(run, folder)

        assert refusal.startswith(f"{folder / INDEX} is not a valid shard index: ")
        assert message in refusal

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda shard: shard.symlink_to("nowhere.safetensors"), "the shard 's4.safetensors' is missing"),
            (lambda shard: shard.symlink_to(".."), "the shard 's4.safetensors' is missing"),
            (lambda shard: shard.symlink_to(shard.name), "the shard 's4.safetensors' is missing"),
            (lambda shard: shard.symlink_to("/dev/zero"), "the shard 's4.safetensors' is missing"),
            (os.mkfifo, "the shard 's4.safetensors' is missing"),
            (lambda shard: shard.symlink_to("/etc/passwd"), "s4.safetensors is rejected: "),
            (lambda shard: shard.write_bytes(b""), "s4.safetensors is rejected: it is too short"),
            (
                lambda shard: shard.hardlink_to(shard.with_name("s1.safetensors")),
                "both s1.safetensors and s4.safetensors contain 'a'",
            ),
        ],
        ids=["dangling", "folder", "circle", "device", "pipe", "another file", "empty", "twice"],
    )
    def test_a_shard_that_is_none_is_one_line(self, make, message, run, folder):
        make(folder / "s4.safetensors")
        save_index(folder, {"a": "s1.safetensors", "d": "s4.safetensors"})

        assert message in refusals(run, folder)[0]

    def test_an_index_of_any_size_is_not_read(self, run, folder):
        with (folder / INDEX).open("wb") as file:
            file.truncate(100_000_001)

        assert refusals(run, folder)[0].endswith(": it has more than 100,000,000 bytes")

    @pytest.mark.parametrize("name", ["pytorch_model.bin.index.json", "index.index.json"])
    def test_an_index_of_other_files_is_refused(self, name, run, tmp_path):
        safetensors.save_file(mlp().inputs, tmp_path / "in.safetensors")
        torch.save({"a": torch.zeros(1)}, tmp_path / "model.bin")
        index = save_index(tmp_path, {"a": "model.bin"}, name)

        refusal = run.refusal("--inputs", tmp_path / "in.safetensors", weights=index)

        assert refusal == f"{index} is not an index of .safetensors files"
