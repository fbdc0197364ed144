"""Headers of safetensors files as somebody who means harm writes them."""

from __future__ import annotations

import json
import tracemalloc

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fakexport.archive.weights import CheckpointError, open_checkpoint
from fakexport.archive.weights.safetensors_file import DTYPES, read_header
from fakexport.archive.weights.safetensors_header import DTYPE_NAMES

GOOD = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def file_of(header, data=bytes(8), length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def refusal(content, path):
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    return str(caught.value)


HOSTILE = {
    "empty": (b"", "too few for a header"),
    "seven bytes": (b"1234567", "too few for a header"),
    "huge length": (file_of(GOOD, length=2**63), "claims 9,223,372,036,854,775,808 bytes"),
    "greatest length": (b"\xff" * 8 + bytes(8), "the limit is 100,000,000"),
    "longer than the file": (file_of(GOOD, length=5000), "the file has"),
    "no brace": (file_of(b" " + json.dumps(GOOD).encode()), "does not start with {"),
    "not JSON": (file_of(b"{nonsense}"), "not JSON"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "not UTF-8 at byte 2"),
    "cut JSON": (file_of(json.dumps(GOOD).encode()[:-2]), "not JSON"),
    "text behind": (file_of(json.dumps(GOOD).encode() + b"x"), "not JSON"),
    "a key twice": (file_of(b'{"a": 1, "a": 2}'), "an object has the key 'a' twice"),
    "a field twice": (
        file_of(b'{"a": {"dtype": "F32", "dtype": "F16", "shape": [2], "data_offsets": [0, 8]}}'),
        "an object has the key 'dtype' twice",
    ),
    "deep": (file_of(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested too deep"),
    "deep and open": (file_of(b'{"a": ' + b"[" * 100_000), "nested too deep"),
    "long number": (file_of(b'{"a": ' + b"9" * 10_000 + b"}"), "value has 10000 digits"),
    "NaN": (file_of(b'{"a": NaN}'), "NaN is not valid JSON"),
    "metadata of numbers": (
        file_of({"__metadata__": {"a": 1}, **GOOD}),
        "__metadata__ does not map names to text",
    ),
    "metadata a list": (file_of({"__metadata__": [], **GOOD}), "__metadata__ does not map names to text"),
    "entry a list": (file_of({"a": [1, 2]}), "an entry must have dtype, shape and data_offsets"),
    "field missing": (file_of({"a": {"dtype": "F32", "shape": [2]}}), "an entry must have dtype"),
    "field too many": (file_of({"a": {**entry(), "stride": [1]}}), "an entry must have dtype"),
    "unknown dtype": (file_of({"a": entry("F31")}), "the dtype 'F31' is not supported"),
    "small dtype": (file_of({"a": entry("F4", (16,))}), "the dtype 'F4' is not supported"),
    "dtype a list": (file_of({"a": entry(["F32"])}), "is not supported"),
    "negative size": (file_of({"a": entry(shape=(-2,))}), "the shape is not a list of sizes"),
    "size a boolean": (file_of({"a": entry(shape=(True, 2))}), "the shape is not a list of sizes"),
    "size a fraction": (file_of({"a": entry(shape=(2.0,))}), "the shape is not a list of sizes"),
    "shape a number": (file_of({"a": {**entry(), "shape": 2}}), "the shape is not a list of sizes"),
    "65 dimensions": (file_of({"a": entry(shape=(1,) * 64 + (2,))}), "the shape is not a list of sizes"),
    "overflow": (file_of({"a": entry(shape=(2**62, 4, 1), offsets=(0, 0))}), "does not fit the 0 bytes"),
    "overflow to eight": (file_of({"a": entry(shape=(2**62, 4, 2**62))}), "does not fit the 8 bytes"),
    "too few bytes": (file_of({"a": entry(shape=(3,))}), "does not fit the 8 bytes"),
    "too many bytes": (file_of({"a": entry(shape=(1,))}), "does not fit the 8 bytes"),
    "three offsets": (
        file_of({"a": entry(offsets=(0, 4, 8))}),
        "data_offsets is not a pair of begin and end",
    ),
    "negative offset": (file_of({"a": entry(offsets=(-8, 0))}), "data_offsets is not"),
    "end before begin": (file_of({"a": entry(offsets=(8, 0))}), "data_offsets is not"),
    "offset beyond 64 bits": (file_of({"a": entry(offsets=(2**64, 2**64 + 8))}), "data_offsets is not"),
    "outside": (file_of({"a": entry(offsets=(8, 16))}), "leaves a hole before it"),
    "past the end": (file_of(GOOD, bytes(4)), "its data ends at"),
    "data behind": (file_of(GOOD, bytes(9)), "its tensors end at"),
    "overlap": (
        file_of({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)),
        "overlaps the previous tensor",
    ),
    "the same bytes twice": (file_of({"a": entry(), "b": entry()}), "overlaps the previous tensor"),
    "a hole": (file_of({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)), "leaves a hole before it"),
    "no name": (file_of({"": entry()}), "a name must be printable"),
    "name with an escape": (file_of({"\x1b[2J": entry()}), "a name must be printable"),
    "name with a line end": (file_of({"a\nb": entry()}), "a name must be printable"),
    "long name": (file_of({"a" * 5000: entry()}), "a name must be printable"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_with_its_reason(case, tmp_path):
    content, reason = HOSTILE[case]

    assert reason in refusal(content, tmp_path / "model.safetensors")


# What we refuse and upstream does not: names that no terminal should show, and what leaves a doubt.
STRICTER = {
    "a field twice",
    "field too many",
    "no brace",
    "no name",
    "name with an escape",
    "name with a line end",
    "long name",
    "65 dimensions",
    "small dtype",
}


@pytest.mark.parametrize("case", sorted(HOSTILE.keys() - STRICTER))
def test_safetensors_itself_refuses_it_too(case, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(HOSTILE[case][0])

    def opened():
        with safe_open(path, "pt") as file:
            return [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118 -- it is no mapping

    with pytest.raises((SafetensorError, OSError, ValueError, TypeError, OverflowError)):
        opened()


def test_nothing_is_allocated_for_what_a_header_declares(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of({"a": entry("U8", (2**40,), (0, 2**40))}))

    tracemalloc.start()
    with pytest.raises(CheckpointError):
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1_000_000


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_change_of_a_file_is_refused_or_read_as_safetensors_reads_it(data, tmp_path):
    good = save({"layer.0.weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2, dtype=torch.int16)})
    position = data.draw(st.integers(0, len(good) - 1))
    change = data.draw(st.binary(min_size=0, max_size=4))
    cut = data.draw(st.integers(0, 4))
    path = tmp_path / "model.safetensors"
    path.write_bytes(good[:position] + change + good[position + cut :])

    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        return

    with safe_open(path, "pt") as reference:
        assert set(reference.keys()) == set(checkpoint.entries)
        for name in checkpoint.entries:
            expected, read = reference.get_tensor(name), checkpoint.tensor(name)
            assert (expected.dtype, expected.shape) == (read.dtype, read.shape)
            assert torch.equal(
                expected.contiguous().view(torch.uint8), read.contiguous().view(torch.uint8)
            ) or (expected.ndim == 0)


def test_the_names_of_dtypes_are_those_of_the_dtypes():
    named = {kind: (getattr(torch, name), size) for kind, (name, size) in DTYPE_NAMES.items()}

    assert named == {kind: (dtype, dtype.itemsize) for kind, dtype in DTYPES.items()}
