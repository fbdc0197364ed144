"""The file beside an ONNX model is a safetensors file whose layout is known before its data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

safetensors = pytest.importorskip("safetensors.torch")

from fakexport.deploy import DeployError  # noqa: E402
from fakexport.deploy.onnx.weights_file import FileLayout  # noqa: E402
from fakexport.weights.expectation import Weight  # noqa: E402

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
WEIGHTS = st.dictionaries(st.text("ab.é", min_size=1), st.builds(Weight, SHAPES, st.sampled_from(DTYPES)))


@given(WEIGHTS)
def test_its_own_reader_finds_every_tensor_and_each_lies_where_the_layout_says(
    tmp_path_factory: pytest.TempPathFactory, weights: dict[str, Weight]
) -> None:
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    tensors = {
        name: torch.full(weight.shape, index % 2, dtype=weight.dtype)
        for index, (name, weight) in enumerate(weights.items())
    }
    layout = FileLayout.of(weights)

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
    assert len(content) == layout.size_bytes
    assert layout.is_that_of(path)


def test_weights_that_are_views_are_written_row_by_row(tmp_path: Path) -> None:
    tensor = torch.arange(6.0).reshape(2, 3).t()
    layout = FileLayout.of({"w": Weight((3, 2), torch.float32)})

    with (tmp_path / "w.safetensors").open("wb") as file:
        layout.write(file, {"w": tensor})

    assert torch.equal(safetensors.load_file(tmp_path / "w.safetensors")["w"], tensor)


def test_another_file_has_another_layout(tmp_path: Path) -> None:
    layout = FileLayout.of({"w": Weight((2,), torch.float32)})
    path = tmp_path / "w.safetensors"
    safetensors.save_file({"w": torch.zeros(3)}, path)
    assert not layout.is_that_of(path)
    path.write_bytes(layout.header)
    assert not layout.is_that_of(path)


def test_a_dtype_without_a_name_in_the_format_is_refused() -> None:
    with pytest.raises(DeployError, match=r"no dtype for the weight w, complex128\[2\]"):
        FileLayout.of({"w": Weight((2,), torch.complex128)})
