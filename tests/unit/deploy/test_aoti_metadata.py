"""What a package says of itself is read back as it was written, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakexport.deploy.aoti.metadata import FORMAT, PackageMetadata, TensorDescription
from fakexport.deploy.signature import Dimension, InputTensor, OutputTensor, Signature
from fakexport.files.documents.document_error import DocumentError

METADATA = PackageMetadata(
    signature=Signature(
        (InputTensor("x", "float32", (Dimension("s1", 1, 0, None, 8), Dimension(plus=4)), "cpu"),),
        (OutputTensor("y", True), OutputTensor("n", False)),
    ),
    orders=((1, 0),),
    device="cpu",
    place="beside",
    tensors=(
        TensorDescription("fc.weight", "bfloat16", (4, 2), aliases=("head.weight",)),
        TensorDescription("scale", "int64", ()),
    ),
    program_id="ab" * 32,
    unread=("mask",),
    versions={"torch": "2.13.0+cpu", "fakexport": "0.1.0"},
    machine="x86_64",
    instructions=("avx2", "fma3"),
    libraries_for=("acme.scale.default", "acme::Table"),
    library_modules={"acme.scale.default": "acme.kernels"},
)


def test_metadata_is_read_back_as_it_was_written() -> None:
    assert PackageMetadata.from_text(METADATA.to_text()) == METADATA


def test_the_shape_of_the_document_is_the_one_that_other_readers_know() -> None:
    document = json.loads(METADATA.to_text())

    assert document["format"] == FORMAT == "fakexport.aoti/1"
    assert document["weights"] == {
        "place": "beside",
        "tensors": [
            {"name": "fc.weight", "dtype": "bfloat16", "shape": [4, 2], "aliases": ["head.weight"]},
            {"name": "scale", "dtype": "int64", "shape": [], "aliases": []},
        ],
        "unread": ["mask"],
    }
    assert document["signature"] == METADATA.signature.to_dict()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", "fakexport.aoti/9", "not a valid format that this fakexport version reads"),
        ("signature", None, "signature"),
        ("orders", [[0, 2]], "do not match the inputs"),
        ("orders", [], "do not match the inputs"),
        ("orders", [[0, -1]], "orders"),
        ("weights", {"place": "elsewhere", "tensors": []}, "not a valid location of weights"),
        ("weights", {"place": "inside", "tensors": [{"name": "a", "dtype": "int8", "shape": [-1]}]}, "shape"),
        ("versions", {"torch": 2}, "versions"),
        ("instructions", "avx2", "instructions"),
    ],
)
def test_a_document_of_another_shape_is_refused(field: str, value: Any, message: str) -> None:
    document = {**json.loads(METADATA.to_text()), field: value}

    with pytest.raises(DocumentError, match=message):
        PackageMetadata.from_text(json.dumps(document))


@pytest.mark.parametrize("field", list(json.loads(METADATA.to_text())))
def test_a_missing_field_is_named(field: str) -> None:
    document = json.loads(METADATA.to_text())
    del document[field]

    with pytest.raises(DocumentError, match=field):
        PackageMetadata.from_text(json.dumps(document))
