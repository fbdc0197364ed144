"""The manifest: the same bytes for the same facts, and nothing accepted that it cannot mean."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakexport.archive.manifest import Location, MethodManifest, UnboundName
from fakexport.archive.manifest_json import (
    MANIFEST,
    decode_manifest,
    encode_manifest,
    read_manifest,
)
from fakexport.exporting.program import UnboundConstant
from fakexport.files.container.error import ArchiveError
from fakexport.files.container.reader import read_container
from fakexport.files.container.writer import Digest, write_container
from fakexport.files.documents.document_error import DocumentError
from fakexport.rules.diagnostics import Span
from tests.unit.archive.described import RECORDS, manifest, read_all, tensor

SPAN = Span("/home/me/x.py", 3)
OF_ALL = ("format", "methods", "shared", "records")
SHA = "0123456789abcdef" * 4


def changed(path: str, value: object) -> bytes:
    """The sample's JSON with one value replaced, or removed where the value is `...`."""
    text = json.loads(encode_manifest(manifest()))
    *parents, last = path.split(".")
    place = text if path in OF_ALL else text["methods"]["model"]
    for key in parents:
        place = place[int(key) if key.isdigit() else key]
    if value is ...:
        del place[last]
    else:
        place[int(last) if last.isdigit() else last] = value
    return json.dumps(text).encode()


def test_an_unbound_constant_is_kept_without_its_span():
    constant = UnboundConstant(
        "scale", "random", "it was drawn", operator="aten.rand", span=Span("/home/me/x.py", 3)
    )

    kept = UnboundName.of(constant)

    assert kept == UnboundName("scale", "random", "it was drawn", operator="aten.rand")
    assert b"/home/me" not in encode_manifest(manifest(unbound_constants=(kept,)))


def test_it_comes_back_as_it_was():
    assert decode_manifest(encode_manifest(manifest())) == manifest()


def test_a_weight_begins_with_the_prefix():
    with pytest.raises(
        ValueError, match=r"the weight 'model\.wte\.weight' does not begin with the prefix 'lm_head'"
    ):
        manifest(prefix=("", "lm_head"))


def test_the_order_of_mappings_does_not_matter():
    one = manifest(versions={"torch": "2.13.0", "fakexport": "0.1"}, device_map={"a": "cpu", "": "cuda:0"})
    other = manifest(versions={"fakexport": "0.1", "torch": "2.13.0"}, device_map={"": "cuda:0", "a": "cpu"})

    assert encode_manifest(one) == encode_manifest(other)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "fakexport.archive/4", "format: version 'fakexport.archive/4', but this fakexport reads"),
        ("format", "zip", "format: 'zip' is not a valid fakexport format"),
        ("format", ..., "format: this field is missing"),
        ("versions", ..., "versions: this field is missing"),
        (
            "library_operators",
            ["/tmp/libops.so"],
            "library_operators[0]: '/tmp/libops.so' is not a valid operator",
        ),
        ("library_modules", [], "library_modules: expected an object, got list"),
        (
            "library_modules",
            {"signal_ops.soft_clip.default": "os; rm -rf"},
            "library_modules['signal_ops.soft_clip.default']: 'os; rm -rf' is not a valid Python module name",
        ),
        (
            "library_modules",
            {"a.b.c": "os"},
            "`library_modules` contains 'a.b.c', but `library_operators` does not contain it",
        ),
        ("library_classes", ["Polynomial"], "library_classes[0]: 'Polynomial' is not a valid C++ class"),
        ("date", "2026-01-01", "the field 'date' is unknown"),
        ("tensors.0.stride", ..., "tensors[0].stride: this field is missing"),
        ("tensors.1.data", "x", "tensors[1]: the field 'data' is unknown"),
        ("tensors.1.shape", [4, "s0"], "tensors[1].shape[1]: expected an integer, got str"),
        ("tensors.1.shape", [4, -3], "tensors[1].shape[1]: an integer outside the range 0 to"),
        ("tensors.1.shape", [4, True], "tensors[1].shape[1]: expected an integer, got bool"),
        ("tensors.1.shape", [4, 3.0], "tensors[1].shape[1]: expected an integer, got float"),
        ("tensors.1.shape", [4], "tensors[1]: `model.rotary` has 1 dimensions but 2 strides"),
        ("tensors.1.shape", [1] * 65, "tensors[1].shape: a list of 65 entries; the limit is 64"),
        ("tensors.1.shape", [1 << 62, 1 << 62], "needs more bytes than 63 bits"),
        ("tensors.1.storage_offset", -1, "tensors[1].storage_offset: an integer outside the range 0"),
        ("tensors.1.dtype", "float31", "tensors[1].dtype: 'float31' is not a valid dtype"),
        ("tensors.1.device", "../cpu", "tensors[1].device: '../cpu' is not a valid device"),
        ("tensors.1.is_parameter", 1, "tensors[1].is_parameter: expected true or false, got int"),
        ("tensors.1.name", "lm_head.weight", "the tensors contain the name `lm_head.weight` twice"),
        ("tensors.1.name", "model.wte.weight", "the tensors contain the name `model.wte.weight` twice"),
        ("tensors.0.aliases", ["a\u0007"] * 2, "the tensors contain the name `a\\x07` twice"),
        ("tensors.1.name", "x" * 5000, "tensors[1].name: a string of 5000 characters"),
        ("tensors.1.location", {"file": "x"}, "tensors[1].location.offset: this field is missing"),
        ("weights", "borrowed", "weights: 'borrowed' is none of none, inside, linked"),
        ("recipes.0.entries", [], "a recipe has no entries or no weights"),
        ("recipes.0.weights", [], "a recipe has no entries or no weights"),
        ("recipes.0.weights.0", ["w"], "recipes[0].weights[0]: expected a list of 2 entries"),
        (
            "recipes.0.steps.0.operator",
            "exec",
            "recipes[0].steps[0].operator: 'exec' is not a valid recipe operator",
        ),
        ("recipes.0.steps.0.values", [], "a cat of a recipe reads values that no step produces"),
        ("recipes.0.steps.0.values", [-1], "recipes[0].steps[0].values[0]: an integer outside the range"),
        ("recipes.0.steps.0.numbers", ["0"], "recipes[0].steps[0].numbers[0]: expected an integer"),
        ("weights", "inside", "has no location, but the archive has weights"),
        ("versions.torch", "2.13; rm -rf", "versions['torch']: '2.13; rm -rf' is not a valid version"),
        ("computed", {"lm_head.bias": None}, "the computed weight 'lm_head.bias' is not a weight"),
        ("computed", {"lm_head.weight": 1}, "computed['lm_head.weight']: expected a string, got int"),
        ("prefix", ["", "net."], "the weight 'lm_head.weight' does not begin with the prefix 'net.'"),
        ("prefix", ["a"], "prefix: expected a list of 2 entries, got 1"),
        ("device_map", [], "device_map: expected an object, got list"),
        (
            "unbound_constants.0.reason",
            "magic",
            "[0].reason: 'magic' is none of parameter, random",
        ),
        (
            "records",
            [{"name": "x", "size": 1, "sha256": "abc"}],
            "records[0].sha256: 'abc' is not a valid sha256",
        ),
        ("source", "/home/me/model.py:factory", "absolute path"),
        ("source", "hf:/home/me/config.json", "absolute path"),
        ("source", "C:\\models\\x.py", "absolute path"),
        ("source", "~/x.py:f", "absolute path"),
    ],
)
def test_a_fault_is_named_with_its_path(path, value, message):
    with pytest.raises(DocumentError) as caught:
        decode_manifest(changed(path, value))

    assert message in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"{}", b"\xff", b"[" * 10_000, b'{"a":1,"a":1}', b"1e400"]
)
def test_what_is_no_manifest(text):
    with pytest.raises(DocumentError):
        decode_manifest(text)


@pytest.mark.parametrize(
    "source", ["hf:llama", "https://example.org/x", "model.py:factory", "a/b.py:f", "timm:vit"]
)
def test_a_relative_source_is_kept(source):
    assert decode_manifest(encode_manifest(manifest(source=source))).only.source == source


def test_a_link_needs_an_archive_that_says_so():
    with pytest.raises(ValueError, match="is linked, but `weights` is not `linked`"):
        manifest(weights="inside", tensors=(tensor(location=Location("a.safetensors", 0, 24, SHA)),))


def test_a_weight_must_fit_into_its_bytes():
    with pytest.raises(ValueError, match="needs 24 bytes, but `x` has only 23"):
        tensor(location=Location("x", 0, 23, SHA))


@pytest.mark.parametrize(
    ("location", "message"),
    [
        (Location("data/weights/weight_9", 0, 24), "is not a record"),
        (Location("data/weights/weight_0", 10, 24), "beyond the end"),
    ],
)
@pytest.mark.parametrize("weights", ["inside", "linked"])
def test_a_bound_weight_lies_in_a_record(weights, location, message):
    records = (Digest("data/weights/weight_0", 30, SHA),)

    with pytest.raises(ValueError, match=message):
        manifest(weights=weights, tensors=(tensor(location=location),), records=records)


@pytest.mark.parametrize("size", [24, 2])
def test_a_computed_weight_has_all_of_its_elements_or_one_in_a_record(size):
    records = (Digest("extra/fakexport/computed_0", size, SHA),)
    own = manifest(computed={"model.rotary": "extra/fakexport/computed_0"}, records=records)

    assert decode_manifest(encode_manifest(own)) == own
    assert b"computed" not in encode_manifest(manifest())


@pytest.mark.parametrize("record", ["extra/fakexport/computed_0", "extra/fakexport/computed_1"])
def test_a_computed_weight_in_no_record_of_its_size_is_refused(record):
    records = (Digest("extra/fakexport/computed_0", 12, SHA),)

    with pytest.raises(ValueError, match=r"the value of `model\.rotary` does not fit the record"):
        manifest(computed={"model.rotary": record}, records=records)


def test_one_element_stands_for_a_small_weight_alone():
    large = tensor("model.rotary", source=None, shape=(2**20, 3))

    with pytest.raises(ValueError, match="has 6291456 bytes; the limit is 4194304"):
        manifest(
            tensors=(large,),
            computed={"model.rotary": "extra/fakexport/computed_0"},
            records=(Digest("extra/fakexport/computed_0", 2, SHA),),
        )


def test_a_bound_archive_has_no_computed_weights():
    with pytest.raises(ValueError, match="an archive with weights must not list computed weights"):
        manifest(
            weights="inside",
            tensors=(tensor(location=Location("data/weights/weight_0", 0, 24)),),
            recipes=(),
            computed={"lm_head.weight": None},
        )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda digest: replace(digest, sha256=SHA), "sha256 differs from the recorded one"),
        (lambda digest: replace(digest, size=digest.size + 1), "the manifest lists"),
        (lambda digest: replace(digest, name="models/other.json"), "is missing, but the manifest lists it"),
    ],
)
def test_a_manifest_of_other_records_is_refused(tmp_path, spoil, message):
    def last(digests: tuple[Digest, ...]) -> bytes:
        spoiled = tuple(spoil(d) if d.name == "models/model.json" else d for d in digests)
        return encode_manifest(manifest(records=spoiled))

    write_container(tmp_path / "a.pt2", RECORDS, last=(MANIFEST, last))

    with pytest.raises(ArchiveError, match=message):
        read_all(tmp_path / "a.pt2")


def test_a_record_that_the_manifest_leaves_out_is_refused(tmp_path):
    def last(digests: tuple[Digest, ...]) -> bytes:
        return encode_manifest(manifest(records=digests[1:]))

    write_container(tmp_path / "a.pt2", RECORDS, last=(MANIFEST, last))

    with (
        read_container(tmp_path / "a.pt2") as container,
        pytest.raises(ArchiveError, match="is not listed in the"),
    ):
        read_manifest(container)


def test_an_archive_without_a_manifest_says_so(tmp_path):
    write_container(tmp_path / "a.pt2", RECORDS)

    with read_container(tmp_path / "a.pt2") as container, pytest.raises(ArchiveError) as caught:
        read_manifest(container)

    assert str(caught.value) == f"{tmp_path}/a.pt2: {MANIFEST}: is missing"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
PATHS = [
    *(f"tensors.0.{name}" for name in vars(tensor())),
    *MethodManifest.__dataclass_fields__,
    *OF_ALL,
    *("tensors.0", "tensors.0.aliases.0", "unbound_constants.0.detail", "device_map.a", "versions.torch"),
]


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(PATHS), value=JSON)
def test_any_value_anywhere_is_taken_or_refused(path, value):
    text = changed(path, value)

    try:
        found = decode_manifest(text)
    except DocumentError:
        return

    assert decode_manifest(encode_manifest(found)) == found
