"""Bundles that somebody bent: one line, and nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fakexport as fe
from fakexport.archive import describe
from fakexport.archive.loading import load_archive
from fakexport.archive.manifest import MOST_METHODS, Manifest
from fakexport.archive.manifest_json import MANIFEST, decode_manifest, encode_manifest
from fakexport.archive.methods import methods_of, read_methods
from fakexport.files.container import ArchiveError
from fakexport.files.container.reader import Limits, read_container
from fakexport.files.container.writer import write_container
from fakexport.files.documents.document_error import DocumentError
from tests.unit.archive.bundles import IMAGE, PREFIXES, fakes, live, speller
from tests.unit.archive.described import about, manifest_of, records_of, tensor


def bundle_manifest() -> Manifest:
    return Manifest(
        methods={
            "encode": about(prefix=("encoder.", "")),
            "decode": about(tensors=(tensor("lm_head.weight"),)),
        },
        shared=((("encode", "lm_head.weight"), ("decode", "lm_head.weight")),),
    )


def test_a_manifest_comes_back_as_it_was() -> None:
    text = encode_manifest(bundle_manifest())

    assert decode_manifest(text) == bundle_manifest()
    assert encode_manifest(decode_manifest(text)) == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="fakexport.archive/4"), "format: version 'fakexport.archive/4', but this"),
        (lambda d: d.update(methods={}), "0 methods; an archive has 1 to 64"),
        (
            lambda d: d.update(methods={f"m{n}": d["methods"]["encode"] for n in range(80)}),
            "methods: an object of 80 entries; the limit is 64",
        ),
        (
            lambda d: d["methods"].update({"../x": d["methods"]["encode"]}),
            "'../x' is not a valid method name",
        ),
        (lambda d: d["methods"]["encode"].update(records=[]), "['encode']: the field 'records' is unknown"),
        (lambda d: d["methods"]["encode"].pop("source"), "['encode'].source: this field is missing"),
        (lambda d: d.update(prefixes={}), "the field 'prefixes' is unknown"),
        (lambda d: d["methods"]["encode"].update(prefix=["a"]), "prefix: expected a list of 2 entries"),
        (lambda d: d.update(shared=[[["encode", "w"]]]), "a shared weight must list several methods"),
        (lambda d: d.update(shared=[[["encode", "w"], ["encode", "v"]]]), "each of them once"),
        (
            lambda d: d.update(shared=[[["encode", "w"], ["other", "w"]]]),
            "belongs to 'other', which is not a method",
        ),
        (
            lambda d: d.update(shared=d["shared"] * 2),
            "`lm_head.weight` of decode is in two groups of shared weights",
        ),
        (
            lambda d: d["methods"]["decode"].update(prefix=["", "n."]),
            "does not begin with the prefix 'n.'",
        ),
        (lambda d: d.update(extra=1), "the field 'extra' is unknown"),
    ],
)
def test_a_fault_of_a_manifest_is_named(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    document = json.loads(encode_manifest(bundle_manifest()))
    change(document)

    with pytest.raises(DocumentError) as caught:
        decode_manifest(json.dumps(document).encode())

    assert message in str(caught.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    fe.save_bundle(fakes(), folder / "weightless.pt2", prefixes=PREFIXES)
    fe.save_bundle(live(speller()), folder / "bound.pt2")
    return folder


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], Any], to: Path) -> Path:
    """The archive with another manifest or other records, and digests that fit them."""
    records, document = records_of(path), json.loads(encode_manifest(manifest_of(path)))
    change(document, records)

    def last(digests: Any) -> bytes:
        return json.dumps({**document, "records": list(digests)}, default=vars).encode()

    write_container(to, records, last=(MANIFEST, last))
    return to


def locate(document: dict[str, Any], name: str, other: str) -> None:
    """Puts a weight of `decode` where another one is."""
    tensors = {entry["name"]: entry for entry in document["methods"]["decode"]["tensors"]}
    tensors[name]["location"] = tensors[other]["location"]


def without_decode(document: dict[str, Any]) -> None:
    del document["methods"]["decode"], document["shared"]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "bound.pt2",
            lambda d, r: locate(d, "net.look.bias", "net.norm.weight"),
            "has different data in encode",
        ),
        ("weightless.pt2", lambda d, r: d["shared"].pop(), "disagree about shared weights"),
        (
            "weightless.pt2",
            lambda d, r: d["shared"][0][0].__setitem__(1, "model.none"),
            "disagree about shared weights",
        ),
        (
            "bound.pt2",
            lambda d, r: d["shared"][0].__setitem__(1, ["decode", "net.look.weight"]),
            "in two groups of shared weights",
        ),
        (
            "weightless.pt2",
            lambda d, r: d["methods"]["decode"].update(prefix=["", "other."]),
            "does not begin with the prefix 'other.'",
        ),
        ("weightless.pt2", lambda d, r: without_decode(d), "models/decode.json: is not listed in the"),
        ("weightless.pt2", lambda d, r: r.pop("models/decode.json"), "models/decode.json: is missing"),
        (
            "weightless.pt2",
            lambda d, r: r.update({"models/decode.json": r["models/encode.json"]}),
            "do not list the same weights",
        ),
        (
            "bound.pt2",
            lambda d, r: d["methods"]["encode"]["tensors"][0]["location"].update(file="models/encode.json"),
            "models/encode.json: is compressed and cannot be mapped",
        ),
        (
            "bound.pt2",
            lambda d, r: d["methods"]["encode"]["tensors"][0]["location"].update(length=2**40),
            "beyond the end of",
        ),
    ],
)
def test_a_bent_bundle_is_refused_in_one_line(
    name: str, change: Callable[..., Any], message: str, folder: Path, tmp_path: Path
) -> None:
    path = rewritten(folder / name, change, tmp_path / "bent.pt2")

    with pytest.raises(ArchiveError) as caught:
        fe.load_bundle(path)

    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_graphs_of_all_methods_are_held_to_the_limit_of_one(folder: Path) -> None:
    sizes = describe(folder / "weightless.pt2").records
    both = sum(size for name, size in sizes.items() if name.startswith("models/"))

    with read_container(folder / "weightless.pt2", limits=Limits(json_bytes=both)) as container:
        assert read_methods(container).names == ("encode", "decode")
    with (
        read_container(folder / "weightless.pt2", limits=Limits(json_bytes=both - 1)) as container,
        pytest.raises(ArchiveError, match="the programs exceed"),
    ):
        read_methods(container)


def test_a_package_of_torch_has_no_names_that_no_method_can_have(tmp_path: Path) -> None:
    from torch.export.pt2_archive._package import package_pt2

    program = torch.export.export(nn.Linear(3, 2), (IMAGE,))
    program.example_inputs = None
    package_pt2(str(tmp_path / "names.pt2"), exported_programs={"a-b": program, "c": program})
    with pytest.raises(
        ArchiveError, match=r"models/a-b\.json: the name of the program is not a valid method name"
    ):
        methods_of(tmp_path / "names.pt2")

    package_pt2(
        str(tmp_path / "many.pt2"), exported_programs={f"m{n}": program for n in range(MOST_METHODS + 1)}
    )
    with pytest.raises(ArchiveError, match=f"more than {MOST_METHODS} programs"):
        fe.load_bundle(tmp_path / "many.pt2")


def test_pickled_example_inputs_of_a_package_are_not_read(tmp_path: Path) -> None:
    from torch.export.pt2_archive._package import package_pt2

    program = torch.export.export(nn.Linear(3, 2), (IMAGE,))
    package_pt2(str(tmp_path / "pickled.pt2"), exported_programs={"a": program, "b": program})

    loaded = load_archive(tmp_path / "pickled.pt2", is_whole=True)

    assert loaded.notes[-1] == "the example inputs are pickled and were not read"
    assert loaded.bundle.keys() == {"a", "b"}
