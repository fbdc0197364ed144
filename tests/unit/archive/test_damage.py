"""A flipped bit, a cut, a splice: each is noticed, and none does worse than an `ArchiveError`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakexport.container.error import ArchiveError
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
@pytest.mark.parametrize("bit", range(8))
def test_a_flip_at_every_bit(sample, scratch, bit):
    assert unnoticed_flips(sample, scratch, lambda _: 1 << bit) == []


@pytest.mark.slow
def test_a_cut_at_every_byte(sample, scratch):
    unnoticed = [length for length in range(len(sample)) if not is_refused(scratch, sample[:length])]

    assert unnoticed == []


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_splice(sample, scratch, data):
    at = st.integers(0, len(sample))
    start, stop = sorted((data.draw(at), data.draw(at)))
    moved = data.draw(st.one_of(st.just(b""), st.just(sample[start:stop]), st.binary(max_size=100)))
    place = data.draw(at)
    overwritten = data.draw(st.one_of(st.just(0), st.just(len(moved)), st.integers(0, 200)))
    damaged = sample[:place] + moved + sample[place + overwritten :]

    assert damaged == sample or is_refused(scratch, damaged)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 255)), min_size=1, max_size=8))
def test_several_flips(sample, scratch, flips):
    damaged = bytearray(sample)
    for position, mask in flips:
        damaged[position % len(sample)] ^= mask

    assert bytes(damaged) == sample or is_refused(scratch, bytes(damaged))
