"""Checkpoints of every form give the tensors that their own libraries give."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

from fakexport.archive.weights import CheckpointError, WeightsWarning, open_checkpoint
from fakexport.archive.weights.safetensors_file import DTYPES
from fakexport.emulation.fake import fake_mode


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return {
        "layer.0.weight": torch.randn(4, 3),
        "layer.0.bias": torch.randn(4, dtype=torch.float64),
        "step": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "mask": torch.tensor([True, False, True]),
        "half": torch.randn(5).bfloat16(),
    }


def save_shards(folder, tensors, *, save=save_file, stem="model", suffix="safetensors"):
    """Two shards and their index, as transformers names them."""
    names = list(tensors)
    weight_map = {}
    for number, part in enumerate((names[:2], names[2:]), start=1):
        shard = f"{stem}-0000{number}-of-00002.{suffix}"
        save({name: tensors[name] for name in part}, folder / shard)
        weight_map.update(dict.fromkeys(part, shard))
    index = folder / f"{stem}.{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1.5}, "weight_map": weight_map}))
    return index


def forms(folder, tensors):
    """Form -> what is given to `open_checkpoint`."""
    for name in ("single", "sharded", "bin", "sharded_bin", "odd_name"):
        (folder / name).mkdir()
    save_file(tensors, folder / "single" / "model.safetensors")
    save_file(tensors, folder / "odd_name" / "weights.safetensors")
    torch.save(tensors, folder / "bin" / "pytorch_model.bin")
    torch.save({"state_dict": tensors, "epoch": 3}, folder / "training.pt")
    index = save_shards(folder / "sharded", tensors)
    save_shards(folder / "sharded_bin", tensors, save=torch.save, stem="pytorch_model", suffix="bin")
    return {
        "a file": folder / "single" / "model.safetensors",
        "a text": str(folder / "single" / "model.safetensors"),
        "a folder": folder / "single",
        "a folder with another name": folder / "odd_name",
        "shards": folder / "sharded",
        "an index": index,
        "torch.save": folder / "bin" / "pytorch_model.bin",
        "torch.save in a folder": folder / "bin",
        "shards of torch.save": folder / "sharded_bin",
        "nested": folder / "training.pt",
        "a dict": tensors,
    }


def test_every_form_gives_the_same_tensors(tmp_path, tensors):
    for form, given in forms(tmp_path, tensors).items():
        checkpoint = open_checkpoint(given)

        assert checkpoint.entries.keys() == tensors.keys(), form
        for name, tensor in tensors.items():
            entry, read = checkpoint.entries[name], checkpoint.tensor(name)
            assert (entry.shape, entry.dtype) == (tuple(tensor.shape), tensor.dtype), form
            assert entry.nbytes == tensor.numel() * tensor.itemsize
            assert read.dtype == tensor.dtype
            assert torch.equal(read, tensor), form


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_is_read_as_safetensors_itself_reads_it(dtype, tmp_path):
    path = tmp_path / "model.safetensors"
    data = (
        torch.arange(16, dtype=torch.uint8) % 2
        if dtype is torch.bool
        else torch.arange(16, dtype=torch.uint8)
    )
    tensor = data.view(dtype)
    save_file({"a": tensor}, path)

    read = open_checkpoint(path).tensor("a")

    with safe_open(path, "pt") as reference:
        expected = reference.get_tensor("a")
    assert (read.dtype, read.shape) == (expected.dtype, expected.shape)
    assert torch.equal(read.view(torch.uint8), expected.view(torch.uint8))


def test_writing_into_a_tensor_changes_neither_the_file_nor_its_neighbours(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(4), "b": torch.ones(4)}, path)
    before = path.read_bytes()
    checkpoint = open_checkpoint(path)
    first, second = checkpoint.tensor("a"), checkpoint.tensor("b")

    first.fill_(9)

    assert path.read_bytes() == before
    assert torch.equal(second, torch.ones(4))
    assert first.untyped_storage().nbytes() == 16


def test_a_tensor_stays_readable_when_the_checkpoint_and_the_file_are_gone(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(1000.0)}, path)
    tensor = open_checkpoint(path).tensor("a")

    path.unlink()

    assert torch.equal(tensor, torch.arange(1000.0))


def test_a_tensor_that_is_not_aligned_is_copied(tmp_path):
    path = tmp_path / "model.safetensors"
    fields = {
        "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [3, 7]},
    }
    header = json.dumps(fields).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\1\2\3" + b"\0\0\x80\x3f")

    checkpoint = open_checkpoint(path)

    assert checkpoint.tensor("a").tolist() == [1, 2, 3]
    assert checkpoint.tensor("b").tolist() == [1.0]


def test_a_file_that_has_changed_since_is_noticed(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(4)}, path)
    checkpoint = open_checkpoint(path)
    path.write_bytes(path.read_bytes()[:-4])

    with pytest.raises(CheckpointError, match="bytes, but had"):
        checkpoint.tensor("a")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_file_that_is_exchanged_after_it_was_opened_is_not_read(tmp_path, suffix):
    save = save_file if suffix == "safetensors" else torch.save
    path, other = tmp_path / f"model.{suffix}", tmp_path / "other"
    save({"weight": torch.zeros(8)}, path)
    save({"weight": torch.ones(8)}, other)
    opened = open_checkpoint(path)

    other.replace(path)

    assert torch.equal(opened.tensor("weight"), torch.zeros(8))


def test_shared_memory_is_kept_and_told(tmp_path):
    weight = torch.ones(4, 2)
    torch.save({"embed": weight, "head": weight, "view": weight[0]}, tmp_path / "model.pt")

    for given in (tmp_path / "model.pt", {"embed": weight, "head": weight, "view": weight[0]}):
        checkpoint = open_checkpoint(given)

        assert checkpoint.shared == (("embed", "head"),)
        assert checkpoint.nbytes == 32 + 8
        assert checkpoint.tensor("embed").data_ptr() == checkpoint.tensor("head").data_ptr()


def test_fakes_are_a_checkpoint_too():
    with fake_mode():
        fake = torch.empty(3, 2, dtype=torch.float16)

    checkpoint = open_checkpoint({"a": fake})

    assert checkpoint.entries["a"].shape == (3, 2)
    assert open_checkpoint(checkpoint) is checkpoint


def test_an_unknown_name_is_a_key_error(tensors):
    with pytest.raises(KeyError):
        open_checkpoint(tensors).tensor("nothing")


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "has no .safetensors file"),
        (lambda path: path.write_text("x"), "is not a checkpoint: pass a"),
    ],
)
def test_what_is_no_checkpoint_is_one_line(make, reason, tmp_path):
    path = tmp_path / "thing"
    make(path)
    if not path.exists():
        path = path.with_suffix(".safetensors")

    with pytest.raises(CheckpointError, match=reason) as caught:
        open_checkpoint(path)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"a": Evil()}, "could run code from the file"),
        ([torch.zeros(2)], "does not map names to tensors"),
        ({"epoch": 3}, "does not map names to tensors"),
        ({"a": torch.zeros(2).to_sparse()}, "is not a plain tensor"),
    ],
)
def test_a_file_of_torch_save_that_is_refused(content, reason, tmp_path, capsys):
    path = tmp_path / "model.bin"
    torch.save(content, path)

    with pytest.raises(CheckpointError, match=reason) as caught:
        open_checkpoint(path)

    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_a_file_of_the_old_kind_or_of_noise_is_one_line(tmp_path):
    old, noise = tmp_path / "old.pt", tmp_path / "noise.pt"
    torch.save({"a": torch.zeros(2)}, old, _use_new_zipfile_serialization=False)
    noise.write_bytes(b"PK\3\4" + bytes(100))

    for path in (old, noise):
        with pytest.raises(CheckpointError, match="cannot be loaded") as caught:
            open_checkpoint(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("stem", "suffix", "save"),
    [("model", "safetensors", save_file), ("pytorch_model", "bin", torch.save)],
)
def test_a_file_comes_before_a_stale_index_as_in_transformers(stem, suffix, save, tmp_path):
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=4, n_positions=4, vocab_size=8)
    stale, current = (transformers.GPT2LMHeadModel(config) for _ in range(2))
    config.save_pretrained(tmp_path)
    tensors = dict(stale.transformer.state_dict(prefix="transformer."))
    save_shards(tmp_path, tensors, save=save, stem=stem, suffix=suffix)
    current_tensors = dict(current.transformer.state_dict(prefix="transformer."))
    save(current_tensors, tmp_path / f"{stem}.{suffix}")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, use_safetensors=suffix == "safetensors")

    with pytest.warns(WeightsWarning, match=f"{stem}.{suffix} is read, as in transformers"):
        checkpoint = open_checkpoint(tmp_path)

    for name, tensor in loaded.state_dict().items():
        if name != "lm_head.weight":
            assert torch.equal(checkpoint.tensor(name), tensor)
            assert torch.equal(current_tensors[name], tensor)


@pytest.mark.parametrize("stem", ["model", "diffusion_pytorch_model"])
def test_an_index_alone_is_read_without_a_warning(stem, tmp_path, tensors):
    save_shards(tmp_path, tensors, stem=stem)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_checkpoint(tmp_path).entries.keys() == tensors.keys()


def test_several_files_without_an_index_are_ambiguous(tmp_path):
    for name in ("a", "b"):
        save_file({name: torch.zeros(1)}, tmp_path / f"{name}.safetensors")

    with pytest.raises(CheckpointError, match=r"2 files without an index: pass one of them: a\.safetensors"):
        open_checkpoint(tmp_path)


def test_a_mapping_of_something_else_is_refused():
    with pytest.raises(CheckpointError, match="'a' is a list"):
        open_checkpoint({"a": [1, 2]})


def with_map(folder, weight_map):
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": weight_map}))
    return path


@pytest.mark.parametrize(
    ("weight_map", "reason"),
    [
        ({"a": "missing.safetensors"}, "'missing.safetensors' is missing"),
        ({"a": "../model.safetensors"}, "is not in the folder of the index"),
        ({"a": "/etc/model.safetensors"}, "is not in the folder of the index"),
        ({"a": "x\\model.safetensors"}, "is not in the folder of the index"),
        ({"a": "C:model.safetensors"}, "is not in the folder of the index"),
        ({"a": ".model.safetensors"}, "is not in the folder of the index"),
        ({"a": "model.safetensors.index.json"}, "is not a valid shard name"),
        ({"a": "model.bin"}, "is not a valid shard name"),
        ({"a": 3}, "is not a valid shard name"),
        ({"a": None}, "is not a valid shard name"),
        ({"a": "mo\0del.safetensors"}, "is not a valid shard name"),
        ({"a": ["s1.safetensors"]}, "is not a valid shard name"),
        ({}, "has no weight_map"),
        ([], "has no weight_map"),
        ({"b": "s1.safetensors"}, "'b' is missing from s1.safetensors, where the index lists it"),
        ({"a": "s1.safetensors", "b": "s1.safetensors"}, "'b' is missing from s1.safetensors"),
        ({"b": "s2.safetensors"}, "contains 'c', which the index does not list there"),
        ({"a": "s1.safetensors", "b": "s2.safetensors", "c": "s1.safetensors"}, "'c' is missing from s1"),
    ],
)
def test_an_index_that_is_refused(weight_map, reason, tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "s1.safetensors")
    save_file({"b": torch.zeros(1), "c": torch.zeros(1)}, tmp_path / "s2.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "s3.safetensors")
    with_map(tmp_path, weight_map)

    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)

    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_tensor_in_two_shards_is_refused(tmp_path):
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "s1.safetensors")
    save_file({"a": torch.zeros(1), "c": torch.zeros(1)}, tmp_path / "s2.safetensors")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(
        json.dumps({"weight_map": {"a": "s1.safetensors", "b": "s1.safetensors", "c": "s2.safetensors"}})
    )

    with pytest.raises(CheckpointError, match=r"both s1.safetensors and s2.safetensors contain 'a'"):
        open_checkpoint(path)


def test_a_shard_is_followed_through_a_link_as_the_hub_cache_has_them(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "blobs" / "0123abcd.safetensors")
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(tmp_path / "blobs" / "0123abcd.safetensors")

    assert open_checkpoint(tmp_path / "snapshot").tensor("a").tolist() == [1.0]
