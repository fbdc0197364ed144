"""What a file is, whatever is in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.container import ArchiveError
from fakexport.deploy import artifact_kind


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    program = fe.export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),))
    path = tmp_path_factory.mktemp("archive") / "program.pt2"
    fe.save(program, path)
    return path.read_bytes()


@pytest.mark.parametrize("damage_at", [0, 28, 42])
def test_a_damaged_archive_is_a_refused_program(archive: bytes, damage_at: int, tmp_path: Path) -> None:
    damaged = bytearray(archive)
    entry = damaged.rindex(b"PK\x01\x02")
    damaged[entry + damage_at : entry + damage_at + 4] = b"\xff" * 4
    path = tmp_path / "program.pt2"
    path.write_bytes(damaged)

    assert artifact_kind(path) == "program"
    with pytest.raises(ArchiveError):
        fe.load(path)
