"""The weights beside a package are what every reader of safetensors takes them for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fakexport.deploy.aoti.weights_file import file_beside, write_weights
from fakexport.deploy.artifact import DeployError
from fakexport.weights import open_checkpoint

safetensors = pytest.importorskip("safetensors.torch")

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


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("weights") / "model.aoti.safetensors"
    with made.open("wb") as file:
        write_weights(file, TENSORS)
    return made


@pytest.mark.parametrize("name", list(TENSORS))
def test_the_library_reads_what_was_written(path: Path, name: str) -> None:
    found, wanted = safetensors.load_file(path)[name], TENSORS[name].detach()

    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(found.reshape(-1).view(torch.uint8), wanted.contiguous().reshape(-1).view(torch.uint8))


def test_each_tensor_begins_where_its_elements_can_be_read_in_place(path: Path) -> None:
    entries = open_checkpoint(path).entries

    assert entries.keys() == TENSORS.keys()
    assert all(entry.offset % entry.dtype.itemsize == 0 for entry in entries.values())


def test_a_dtype_that_the_format_does_not_have_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "w").open("wb") as file, pytest.raises(DeployError, match=r"z is torch\.complex128"):
        write_weights(file, {"z": torch.zeros(2, dtype=torch.complex128)})


def test_the_file_beside_has_the_name_of_the_package() -> None:
    assert file_beside(Path("a/model.aoti.pt2")) == Path("a/model.aoti.safetensors")
