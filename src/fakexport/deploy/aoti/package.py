"""Read, write and cache compiled packages. A package is torch's own, with fakexport's metadata added."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch.export import ExportedProgram

from fakexport.archive.weights import DTYPES, Weight, open_checkpoint
from fakexport.exporting.program import has_value
from fakexport.files import (
    PrivateFolderError,
    fault_of_owner,
    make_private_folder,
    new_file,
    open_regular,
    private_folder,
)
from fakexport.files.container import (
    MIB,
    ArchiveError,
    Container,
    Content,
    Digest,
    FileSlice,
    read_container,
    write_container,
)
from fakexport.files.documents import DocumentError, entries, text

from ..artifact import DeployError
from ..weights_file import FileLayout, raw_chunks
from .metadata import KEY, PackageMetadata

PROGRAM = "data/fakexport/program.pt2"
"""Name of the record with the program's weight-less archive, in packages whose weights are bound later."""

CONSTANTS = "data/fakexport/constants.safetensors"
"""Name of the record with the constants that have known values, in packages whose weights are bound later.

Checkpoints do not contain these constants. They are literals in the model's code and non-persistent buffers.
"""

KERNELS = "data/fakexport/kernels.json"
"""Record of the Triton kernels and their configurations, in packages for a GPU that the machine lacked."""

_DIGESTS = "data/fakexport/sha256.json"
_ALONE = "model"
_FOLDER = f"data/aotinductor/{_ALONE}/"
_METADATA_OF_CODE = re.compile(r"data/aotinductor/([^/]+)/[^/]*_metadata\.json")
_METADATA = "_metadata.json"
# torch's loader expects the states of C++ objects in this folder, next to the constants.
_OBJECT, _OBJECTS_FOLDER = "custom_obj_", "data/constants/"


def write_package(
    path: Path,
    files: Iterable[Path],
    metadata: PackageMetadata | None = None,
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write a package atomically, with digests of all records."""
    records: dict[str, Content] = {}
    for file in files:
        content: Content = FileSlice(file, 0, file.stat().st_size)
        if metadata is not None and file.name.endswith(_METADATA):
            content = json.dumps({**json.loads(file.read_bytes()), KEY: metadata.to_text()}).encode()
        folder = _OBJECTS_FOLDER if file.name.startswith(_OBJECT) else _FOLDER
        records[folder + file.name] = content
    records.update(more)

    _write_records(path, records)


def _write_records(path: Path, records: Mapping[str, Content]) -> None:
    def digests(written: tuple[Digest, ...]) -> bytes:
        return json.dumps({digest.name: digest.sha256 for digest in written}, indent=1).encode()

    write_container(path, records, last=(_DIGESTS, digests))


def write_joined(path: Path, packages: Mapping[str, Path]) -> None:
    """Combine packages: of one program by compute capability, or of ranges of sizes by method."""
    records: dict[str, Content] = {}
    program_id = ""
    for code, file in packages.items():
        with read_container(file, trust=True) as package:
            metadata = read_metadata(package)
            # The ids of the packages differ, because each program names its GPU. Use the first id for all.
            program_id = program_id or metadata.program_id
            text = replace(metadata, program_id=program_id).to_text()
            for name in package.names:
                content = package.record(name)
                if _METADATA_OF_CODE.fullmatch(name):
                    content = json.dumps({**json.loads(content), KEY: text}).encode()
                if name != _DIGESTS:
                    records.setdefault(_name_in_code(name, code), content)
    _write_records(path, records)


def _name_in_code(name: str, code: str) -> str:
    """Return a record's name for `code`, one of `code_names`, given its name in a package for one GPU."""
    if code != _ALONE and name in (CONSTANTS, KERNELS):
        return name.replace("fakexport/", f"fakexport/{code}/")
    return name.replace(_FOLDER, f"data/aotinductor/{code}/")


def code_names(package: Container) -> tuple[str, ...]:
    """Return the names of the code in a package: `model`, each GPU's capability, or each range's method."""
    found = (_METADATA_OF_CODE.fullmatch(name) for name in package.names)
    if not (names := tuple(dict.fromkeys(match[1] for match in found if match))):
        raise ArchiveError(package.path, "is not an AOTInductor package")
    return names


def read_metadata(package: Container, code: str | None = None) -> PackageMetadata:
    """Return fakexport's metadata for `code`, by default for the first of `code_names`."""
    folder = f"data/aotinductor/{code or code_names(package)[0]}/"
    names = [name for name in package.names if name.startswith(folder) and name.endswith(_METADATA)]
    found = package.json(names[0])
    if not isinstance(found, dict) or not isinstance(found.get(KEY), str):
        raise ArchiveError(
            package.path,
            "was not compiled by fakexport, so its inputs and weights are unknown; "
            "`torch._inductor.aoti_load_package` opens it",
        )
    try:
        return PackageMetadata.from_text(found[KEY])
    except DocumentError as error:
        raise ArchiveError(package.path, str(error), names[0]) from error


def verify_package(package: Container) -> None:
    """Check all records against their recorded hashes. Raise an `ArchiveError` if any differs."""
    try:
        expected: Mapping[str, str] = entries(package.json(_DIGESTS), text)
    except DocumentError as error:
        raise ArchiveError(package.path, str(error), _DIGESTS) from error
    if unlike := sorted(expected.keys() ^ (set(package.names) - {_DIGESTS})):
        raise ArchiveError(package.path, "is missing, or was added after the package was written", unlike[0])
    package.expect(expected)
    for name in expected:
        package.verify(name)


def known_constants(program: ExportedProgram, names: Collection[str]) -> dict[str, torch.Tensor]:
    """Return the constants among `names` that have a value. They may be fake tensors with a recorded value.

    Constants with a dtype that safetensors does not support are omitted, and must be bound like weights.
    """
    return {
        name: held
        for name, held in program.constants.items()
        if name in names
        and isinstance(held, torch.Tensor)
        and held.dtype in DTYPES.values()
        and has_value(held)
    }


def constants_record(constants: dict[str, torch.Tensor]) -> bytes:
    """Return the constants as the content of a safetensors file."""
    layout = FileLayout.of({name: Weight(tuple(held.shape), held.dtype) for name, held in constants.items()})
    content = io.BytesIO()
    layout.write(content, constants)
    return content.getvalue()


def read_constants(package: Container, code: str = _ALONE) -> dict[str, torch.Tensor]:
    """Return copies of the constants in a package, on the CPU."""
    if (record := _name_in_code(CONSTANTS, code)) not in package.entries:
        return {}
    with tempfile.TemporaryDirectory(prefix="fakexport-") as folder:
        file = Path(folder, "constants.safetensors")
        file.write_bytes(package.record(record))
        opened = open_checkpoint(file)
        return {name: opened.tensor(name).clone() for name in opened.entries}


def cache_key(archive: bytes, values: Mapping[str, torch.Tensor], facts: Mapping[str, object]) -> str:
    """Return a sha256 of the weight-less archive, the values compiled into the code, and `facts`."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(hashlib.sha256(archive).digest())
    for name, tensor in sorted(values.items()):
        digest.update(hashlib.sha256(name.encode()).digest())
        content = hashlib.sha256()
        for chunk in raw_chunks(tensor):
            content.update(chunk)
        digest.update(content.digest())
    return digest.hexdigest()


class PackageCache:
    """One entry in a cache of packages. Cached code is executed, so no other user may have write access."""

    def __init__(self, folder: Path, key: str) -> None:
        try:
            self._folder = private_folder(folder)
        except PrivateFolderError as error:
            raise DeployError(
                f"code from the cache is executed, so only you may have write access: {error}"
            ) from None
        self._path = self._folder / f"{key}.aoti.pt2"

    def taken(self, folder: Path) -> Path | None:
        """Copy the entry to `folder`, and return the path of the copy. Return None if the entry is missing or
        damaged, or if this fakexport version cannot open it.

        The checks apply to the copy, so later changes to the entry have no effect.

        Raises:
            DeployError: Other users had write access to the entry.
        """
        copy = folder / "cached.pt2"
        try:
            with open_regular(self._path) as entry:
                if (fault := fault_of_owner(entry.status)) is not None:
                    raise DeployError(
                        f"{self._path} {fault}, and its code would be executed: delete the file"
                    )
                with copy.open("xb") as target:
                    target.writelines(entry.pieces())
            with read_container(copy, trust=True) as package:
                read_metadata(package)
                verify_package(package)
        except (ArchiveError, OSError):
            return None
        return copy

    def keep(self, package: Path) -> str | None:
        """Store a copy of the package as the entry. If that fails, return a sentence with the reason."""
        try:
            make_private_folder(self._folder)
            with (
                new_file(self._path, mode=0o600, replaces_input=True) as target,
                package.open("rb") as source,
            ):
                shutil.copyfileobj(source, target, MIB)
        except (OSError, PrivateFolderError) as error:
            return f"the package was not stored in the cache: {error}"
        return None
