"""The description of a .pte file: a method that returns it as JSON, in the file of any runtime.

The file has a second method, `fakexport`, which takes no arguments and returns the text. The text can also be
found in the bytes, so that the file is not run before its checksum is verified: ExecuTorch's loader aborts
the process on some damaged files.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, get_args

from fakexport.documents import (
    DocumentError,
    entries,
    field,
    items,
    mapping,
    one_of,
    parse_json,
    record,
    text,
)
from fakexport.files import RegularFile

from ..artifact import DeployError
from ..signature import Signature

Backend = Literal["portable", "xnnpack"]
"ExecuTorch's own kernels only, or XNNPACK for what it supports and those kernels for the rest."

# What ExecuTorch's runtime calls a backend that it delegates to; `portable` is not one of them.
RUNTIME_NAMES: dict[Backend, str] = {"xnnpack": "XnnpackBackend"}


def partitioners(backend: Backend) -> list[Any]:
    """Return the partitioners for the parts of a program that the backend runs.

    XNNPACK's own configs take a product of matrices together with everything that `nn.Linear` did around it.
    If that computes the weight (of a quantized or parametrized layer), XNNPACK would misinterpret memory.
    Here a product is partitioned if its own operands allow it. A plain linear layer is an operator of its
    own, and has its own config.
    """
    if backend == "portable":
        return []
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS
    from executorch.backends.xnnpack.partition.config.gemm_configs import AddmmConfig, GEMMConfig, MMConfig
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    own = {
        config: type(config.__name__, (config,), {"get_deps": GEMMConfig.get_deps})
        for config in (AddmmConfig, MMConfig)
    }
    return [XnnpackPartitioner(configs=[own.get(config, config) for config in ALL_PARTITIONER_CONFIGS])]


METHOD = "fakexport"
_FORMAT = "fakexport.executorch/1"
_UNKNOWN = "0" * 64
_MARK = b"ET12"
_START = f'{{"format": "{_FORMAT}", "sha256": "'.encode()
_STRING_LENGTH_BYTES = 4
_PIECE_BYTES = 1 << 24


@dataclass(frozen=True)
class Description:
    """What is needed to call a .pte file, and to decide whether it can be called here.

    Args:
        signature: Signature of the program.
        arguments: What the method takes, in order: `{"input": "x"}` or `{"value": 3}`.
        written: The inputs that the program mutates; its results begin with their new values.
        backend: `portable` or `xnnpack`.
        versions: Versions of the packages that wrote it.
    """

    signature: Signature
    arguments: tuple[dict[str, Any], ...]
    written: tuple[str, ...]
    backend: str
    versions: dict[str, str]

    def to_json(self) -> str:
        """Return the text for the file, with room for the checksum."""
        head = {"format": _FORMAT, "sha256": _UNKNOWN}
        return json.dumps({**head, **vars(self), "signature": self.signature.to_dict()})

    @classmethod
    def from_json(cls, value: Any) -> Description:
        """Read what `to_json` wrote.

        Raises:
            DocumentError: it is something else.
        """
        owner = mapping(value)
        signature = field(owner, "signature", Signature.from_dict)
        an_input = one_of({tensor.name for tensor in signature.inputs}, "input of the signature")

        def argument(found: Any) -> dict[str, Any]:
            if "input" in mapping(found):
                return record(found, {"input": an_input})
            return record(found, {"value": lambda constant: constant})

        return cls(
            signature,
            field(owner, "arguments", lambda found: tuple(items(found, argument))),
            field(owner, "written", lambda found: tuple(items(found, an_input))),
            field(owner, "backend", one_of(get_args(Backend), "backend")),
            field(owner, "versions", lambda found: entries(found, text)),
        )


def write_checked(file: BinaryIO, content: bytes) -> None:
    """Write an ExecuTorch program with a checksum of all bytes, computed with the checksum as zeros."""
    place = content.index(_START) + len(_START)
    view = memoryview(content)
    file.write(view[:place])
    file.write(hashlib.sha256(view).hexdigest().encode())
    file.write(view[place + len(_UNKNOWN) :])


def described(file: RegularFile) -> Description:
    """Read the description of a .pte file and check the file against its checksum, without running it.

    Raises:
        DeployError: it is not a .pte file, was not written by fakexport, or is damaged.
        OSError: it cannot be read.
    """
    path = file.path
    if file.read_at(0, 8)[4:] != _MARK:
        raise DeployError(f"{path} is not an ExecuTorch program")
    with file.mapped() as content:
        start = content.find(_START)
        if start < 0:
            raise DeployError(
                f"{path} was not written by `fakexport compile`, or is truncated: its description is missing"
            )
        place = start + len(_START)
        if content[place : place + len(_UNKNOWN)] != _checksum(content, place).encode():
            raise DeployError(f"{path} is damaged: its checksum does not match")
        size = int.from_bytes(content[start - _STRING_LENGTH_BYTES : start], "little")
        document = content[start : start + size]
    try:
        return Description.from_json(parse_json(document))
    except DocumentError as error:
        raise DeployError(f"{path}: its description cannot be read: {error}") from None


def _checksum(content: mmap.mmap, place: int) -> str:
    digest = hashlib.sha256()
    with memoryview(content) as view:
        _add(digest, view[:place])
        digest.update(_UNKNOWN.encode())
        _add(digest, view[place + len(_UNKNOWN) :])
    return digest.hexdigest()


def _add(digest: Any, part: memoryview) -> None:
    """Add in pieces, so that the pages of a large file need not all be in memory."""
    with part:
        for start in range(0, len(part), _PIECE_BYTES):
            with part[start : start + _PIECE_BYTES] as piece:
                digest.update(piece)
