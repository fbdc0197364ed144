"""What the fuzzers call with each input: what reads files of strangers, and what may come of it."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fakexport.archive.codec.program import program_from_json
from fakexport.archive.codec.program_outline import outline
from fakexport.archive.manifest_json import MANIFEST, decode_manifest, encode_manifest, verify_records
from fakexport.archive.methods import read_methods
from fakexport.archive.pickled_state import read_pickled_state
from fakexport.archive.saved_object import with_tensors
from fakexport.archive.weights import CheckpointError
from fakexport.archive.weights.checkpoint_files import read_index
from fakexport.archive.weights.safetensors_file import read_header
from fakexport.checking.sweep.zoo_file import ZooFileError, items_of
from fakexport.files.container.error import ArchiveError
from fakexport.files.container.reader import Limits, read_container
from fakexport.files.documents import parse_toml
from fakexport.files.documents.document_error import DocumentError
from fakexport.files.documents.parsing import parse_json
from fakexport.models.sources import SourceError
from fakexport.models.sources.adapters.adapter_config import CONFIG, AdapterFolder

LIMITS = Limits(record_bytes=1 << 20, inflated_bytes=4 << 20, json_bytes=1 << 20)


def open_archive(content: bytes) -> None:
    """Accepts or raises an `ArchiveError`; what is accepted, zipfile and torch's reader must see alike."""
    with _file(content, "archive.pt2") as path:
        try:
            with read_container(path, limits=LIMITS) as container:
                records = {name: container.record(name) for name in container.names}
                folder = container.folder
                if MANIFEST in records:
                    read_methods(container)
                    verify_records(container)
        except ArchiveError as error:
            _check_line(error)
            return
        with zipfile.ZipFile(io.BytesIO(content)) as zipped:
            assert zipped.namelist() == [f"{folder}/{name}" for name in records]
            for name, record in records.items():
                assert zipped.read(f"{folder}/{name}") == record
        reader = torch._C.PyTorchFileReader(str(path))
        assert reader.get_all_records() == list(records)
        for name, record in records.items():
            assert reader.get_record(name) == record


def open_manifest(content: bytes) -> None:
    """Gives a manifest that comes back as it was, or raises a `DocumentError`."""
    try:
        found = decode_manifest(content, LIMITS)
    except DocumentError as error:
        _check_line(error)
        return
    assert decode_manifest(encode_manifest(found), LIMITS) == found


def open_program(content: bytes) -> None:
    """Gives a program, and its outline, or raises a `DocumentError`; never what torch or sympy raise."""
    for read in (_program, outline):
        try:
            read(parse_json(content, most_bytes=LIMITS.json_bytes))
        except DocumentError as error:
            _check_line(error)


def _program(document: Any) -> Any:
    return program_from_json(document)


def open_safetensors(content: bytes) -> None:
    """Gives entries that lie within the file, or raises a `CheckpointError`."""
    with _file(content, "model.safetensors") as path:
        try:
            header = read_header(path)
        except CheckpointError as error:
            _check_line(error)
            return
        assert sum(entry.nbytes for entry in header.entries.values()) <= len(content)


def open_index(content: bytes) -> None:
    """Gives shards that are in the folder, or raises a `CheckpointError`."""
    with _file(content, "model.safetensors.index.json") as path:
        (path.parent / "shard-1.safetensors").write_bytes(b"")
        try:
            shards = read_index(path, suffixes=(".safetensors",))
        except CheckpointError as error:
            _check_line(error)
            return
        assert list(shards) == ["shard-1.safetensors"]


def open_object(content: bytes) -> None:
    """Gives a state of the pickle of a C++ object, or raises a `DocumentError`; makes no object."""
    for read in (read_pickled_state, lambda pickled: with_tensors(pickled, {"data/0": bytes(64)})):
        try:
            found = read(content)
        except DocumentError as error:
            _check_line(error)
        else:
            assert "::" in found.class_name


def open_toml(content: bytes) -> None:
    """Gives tables, or raises a `DocumentError`."""
    _read_or_refused(lambda: parse_toml(content))


def open_yaml(content: bytes) -> None:
    """Gives the checks of a zoo file, or raises a `ZooFileError`."""
    _read_or_refused(lambda: items_of(content, Path("ZOO.yaml")))


def open_adapter(content: bytes) -> None:
    """Gives the settings of an adapter, or raises a `SourceError`; its patterns end."""
    with _file(content, CONFIG) as path:
        _read_or_refused(lambda: AdapterFolder.read(path.parent))


def _read_or_refused(read: Callable[[], object]) -> None:
    try:
        read()
    except (DocumentError, SourceError, ZooFileError) as error:
        _check_line(error)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "archive": open_archive,
    "manifest": open_manifest,
    "program": open_program,
    "safetensors": open_safetensors,
    "index": open_index,
    "object": open_object,
    "toml": open_toml,
    "yaml": open_yaml,
    "adapter": open_adapter,
}


@contextmanager
def _file(content: bytes, name: str) -> Iterator[Path]:
    """The content as a file in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        yield path


def _check_line(error: ValueError) -> None:
    line = str(error)
    assert line
    assert line.isprintable(), f"a terminal cannot show {line!r} as one line"
