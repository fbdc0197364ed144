"""Tensors are found where they lie in the files of a checkpoint, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fakexport.archive.weights import Checkpoint, Windows, open_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    save_file(
        {"a": torch.arange(6.0), "b": torch.arange(6.0, 18.0).reshape(3, 4)}, tmp_path / "w.safetensors"
    )
    return open_checkpoint(tmp_path / "w.safetensors")


@pytest.mark.parametrize("rows", [slice(0, 3), slice(0, 1), slice(1, 3)])
def test_a_part_of_an_entry_is_found_at_its_own_bytes(rows: slice, checkpoint: Checkpoint) -> None:
    part = checkpoint.tensor("b")[rows]

    window = Windows(checkpoint).of(part, part.nbytes)

    assert window is not None
    assert window.entry == "b"
    content = window.path.read_bytes()[window.offset :][: part.nbytes]
    assert torch.equal(torch.frombuffer(bytearray(content), dtype=torch.float32), part.reshape(-1))


def test_what_is_not_memory_of_the_checkpoint_is_not_found(checkpoint: Checkpoint) -> None:
    windows, entry = Windows(checkpoint), checkpoint.tensor("b")

    for tensor in (entry.clone(), entry.double(), entry.t().contiguous(), entry.view(torch.int32)):
        assert windows.of(tensor, tensor.nbytes) is None
    assert windows.of(entry, entry.nbytes + 4) is None
    assert windows.of(torch.empty(0), 0) is None


def test_another_opening_of_the_same_file_is_another_memory(checkpoint: Checkpoint) -> None:
    again = open_checkpoint(checkpoint.location)
    entry = checkpoint.tensor("b")

    assert Windows(again).of(entry, entry.nbytes) is None


def test_tensors_in_memory_and_files_of_torch_have_no_windows(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "w.pt")
    for checkpoint in (open_checkpoint({"a": torch.ones(3)}), open_checkpoint(tmp_path / "w.pt")):
        tensor = checkpoint.tensor("a")

        assert Windows(checkpoint).of(tensor, tensor.nbytes) is None
