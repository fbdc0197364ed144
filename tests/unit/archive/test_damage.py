"""A flipped bit, a cut, a splice: each is noticed, and none does worse than an `ArchiveError`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fakexport.files.container.error import ArchiveError
from tests.unit.archive.described import RECORDS, read_all, write_sample


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("sample") / "model.pt2"
    write_sample(path)
    assert read_all(path).items() >= RECORDS.items()
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "model.pt2"


def is_refused(scratch: Path, content: bytes) -> bool:
    scratch.write_bytes(content)
    try:
        read_all(scratch)
    except ArchiveError as error:
        return len(str(error).splitlines()) == 1
    return False


def unnoticed_flips(sample: bytes, scratch: Path, mask_of: Callable[[int], int]) -> list[int]:
    """Where a flip is taken, and what is read is not what was written.

    Deflate may say one text in two ways, such as by a repetition that refers to another of two equal places.
    """
    scratch.write_bytes(sample)
    written = read_all(scratch)
    unnoticed = []
    for position in range(len(sample)):
        damaged = bytearray(sample)
        damaged[position] ^= mask_of(position)
        if not is_refused(scratch, bytes(damaged)) and read_all(scratch) != written:
            unnoticed.append(position)
    return unnoticed


def test_a_flip_at_every_byte(sample, scratch):
    assert unnoticed_flips(sample, scratch, lambda position: 1 << position % 8) == []


@pytest.mark.slow
def test_a_cut_at_every_byte(sample, scratch):
    unnoticed = [length for length in range(len(sample)) if not is_refused(scratch, sample[:length])]

    assert unnoticed == []
