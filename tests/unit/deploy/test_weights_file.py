"""The file beside what was compiled is a safetensors file whose layout is known before its data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

safetensors = pytest.importorskip("safetensors.torch")

from fakexport.archive.weights.expectation import Weight  # noqa: E402
from fakexport.deploy import DeployError  # noqa: E402
from fakexport.deploy.weights_file import FileLayout, check_owner  # noqa: E402

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
WEIGHTS = st.dictionaries(st.text("ab.é", min_size=1), st.builds(Weight, SHAPES, st.sampled_from(DTYPES)))
OWNER_ID = "ab" * 32
TENSORS = {
    "byte": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "flag": torch.tensor([True, False]),
    "half": torch.randn(3, 5).to(torch.bfloat16),
    "whole": torch.arange(7),
    "scalar": torch.tensor(2.5),
    "none": torch.empty(0, 4),
    "turned": torch.randn(4, 3).t(),
    "float8": torch.randn(5).to(torch.float8_e4m3fn),
    "weight": torch.nn.Parameter(torch.randn(3000, 1500)),  # more than is written at once
}


def layout_of(tensors: dict[str, torch.Tensor]) -> FileLayout:
    return FileLayout.of({name: Weight(tuple(t.shape), t.dtype) for name, t in tensors.items()}, OWNER_ID)


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    layout_of(TENSORS).write_beside(tmp_path / "model.safetensors", TENSORS)

    read = safetensors.load_file(tmp_path / "model.safetensors")

    assert read.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        found, wanted = read[name], tensor.detach().contiguous()
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert torch.equal(found.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8))


@given(WEIGHTS)
def test_its_own_reader_finds_every_tensor_and_each_lies_where_the_layout_says(
    tmp_path_factory: pytest.TempPathFactory, weights: dict[str, Weight]
) -> None:
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    tensors = {
        name: torch.full(weight.shape, index % 2, dtype=weight.dtype)
        for index, (name, weight) in enumerate(weights.items())
    }
    layout = FileLayout.of(weights, OWNER_ID)

    with path.open("wb") as file:
        layout.write(file, tensors)

    content = path.read_bytes()
    read = safetensors.load(content)
    assert read.keys() == weights.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
        offset, length = layout.places[name]
        raw = bytearray(content[offset : offset + length])
        if raw:
            assert torch.equal(torch.frombuffer(raw, dtype=tensor.dtype), tensor.reshape(-1))
        assert offset % tensor.itemsize == 0
    assert len(content) == len(layout.header) + sum(length for _, length in layout.places.values())
    assert FileLayout.of(weights, "cd" * 32).places == layout.places
    assert layout.is_that_of(path)


def test_another_file_has_another_layout(tmp_path: Path) -> None:
    layout = FileLayout.of({"w": Weight((2,), torch.float32)}, OWNER_ID)
    path = tmp_path / "w.safetensors"
    safetensors.save_file({"w": torch.zeros(3)}, path)
    assert not layout.is_that_of(path)
    path.write_bytes(layout.header)
    assert not layout.is_that_of(path)
    safetensors.save_file({"w": torch.zeros(2)}, path)
    assert not layout.is_that_of(path)  # a checkpoint


def test_a_dtype_without_a_name_in_the_format_is_refused() -> None:
    with pytest.raises(DeployError, match=r"cannot store the dtype of the weight w, complex128\[2\]"):
        FileLayout.of({"w": Weight((2,), torch.complex128)})


def test_weights_take_the_place_of_weights_of_the_same_layout_and_of_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    old, new = {"w": torch.zeros(2)}, {"w": torch.ones(2)}

    layout_of(old).write_beside(path, old)
    layout_of(new).write_beside(path, new)

    assert torch.equal(safetensors.load_file(path)["w"], new["w"])
    with pytest.raises(DeployError, match="already exists with different content"):
        layout_of(TENSORS).write_beside(path, TENSORS)
    assert torch.equal(safetensors.load_file(path)["w"], new["w"])


def test_the_file_beside_belongs_to_the_program_that_it_was_written_with(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    package, beside = folder / "model.pt2", folder / "model.safetensors"
    copied = tmp_path / "copied.safetensors"
    assert not check_owner(package, beside, None, OWNER_ID)  # there is none yet
    layout_of(TENSORS).write_beside(beside, TENSORS)
    shutil.copy(beside, copied)

    assert check_owner(package, beside, None, OWNER_ID)
    assert check_owner(package, beside, beside, OWNER_ID)
    assert check_owner(package, beside, folder, OWNER_ID)
    for named in (None, beside, str(beside), folder):
        with pytest.raises(DeployError, match=r"was written for a different model\.pt2: compile ag"):
            check_owner(package, beside, named, "cd" * 32)
    assert not check_owner(package, beside, copied, "cd" * 32)
    assert not check_owner(package, beside, {"w": torch.zeros(2)}, "cd" * 32)
    safetensors.save_file({"w": torch.zeros(2)}, beside)
    assert not check_owner(package, beside, None, "cd" * 32)
