"""The description of a .pte file. A method of the file returns it as JSON, so any runtime can read it.

Besides `forward`, the file has a method `fakexport` without arguments, which returns the JSON text. fakexport
finds the text in the file's bytes and verifies a checksum before it loads the file, because ExecuTorch's
loader aborts the process on some damaged files.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, get_args

from fakexport.files import RegularFile
from fakexport.files.documents import (
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

from ..artifact import DeployError
from ..signature import Signature

Backend = Literal["portable", "xnnpack", "coreml"]
"""`portable`: only ExecuTorch's own kernels. `xnnpack`, `coreml`: a library for the operators that it
supports. fakexport asks Core ML, but writes no files for it.
"""


def partitioners(backend: Backend) -> list[Any]:
    """Return the partitioners that assign parts of a program to the backend.

    XNNPACK's own configs partition a matrix product together with everything that `nn.Linear` computed around
    the product. If the weight itself is computed there (as in a quantized or parametrized layer), XNNPACK
    would misinterpret memory. The returned configs partition a product only if its own operands allow it. A
    plain linear layer is a separate operator with its own config.
    """
    if backend == "portable":
        return []
    if backend == "coreml":
        from executorch.backends.apple.coreml.partition import CoreMLPartitioner

        return [CoreMLPartitioner()]
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


@dataclass(frozen=True)
class Description:
    """Metadata that is needed to call a .pte file, and to decide whether the installed ExecuTorch can run it.

    `arguments` are the arguments of the method `forward`, in order: `{"input": "x"}` or `{"value": 3}`.
    `written` are the inputs that the program mutates. Their new values are the first results of the method.
    """

    signature: Signature
    arguments: tuple[dict[str, Any], ...]
    written: tuple[str, ...]
    backend: str
    versions: dict[str, str]

    def to_json(self) -> str:
        """Return the JSON text for the file, with zeros instead of the checksum."""
        head = {"format": _FORMAT, "sha256": _UNKNOWN}
        return json.dumps({**head, **vars(self), "signature": self.signature.to_dict()})

    @classmethod
    def from_json(cls, value: Any) -> Description:
        """Decode the parsed JSON text of `to_json`, or raise a `DocumentError`."""
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
    """Write an ExecuTorch program with its checksum, which is computed with zeros in its place."""
    place = content.index(_START) + len(_START)
    view = memoryview(content)
    file.write(view[:place])
    file.write(hashlib.sha256(view).hexdigest().encode())
    file.write(view[place + len(_UNKNOWN) :])


def described(file: RegularFile) -> Description:
    """Read the description of a .pte file and verify the file's checksum, without running the file."""
    path = file.path
    if file.read_at(0, 8)[4:] != _MARK:
        raise DeployError(f"{path} is not an ExecuTorch program")
    with file.mapped() as content:
        start = content.find(_START)
        if start < 0:
            raise DeployError(
                f"{path} was not written by `fakexport compile`, or is truncated: no fakexport metadata"
            )
        place = start + len(_START)
        if content[place : place + len(_UNKNOWN)] != _checksum(content, place).encode():
            raise DeployError(f"{path} is damaged: its checksum does not match")
        size = int.from_bytes(content[start - _STRING_LENGTH_BYTES : start], "little")
        document = content[start : start + size]
    try:
        return Description.from_json(parse_json(document))
    except DocumentError as error:
        raise DeployError(f"{path}: its fakexport metadata cannot be read: {error}") from None


def _checksum(content: mmap.mmap, place: int) -> str:
    with memoryview(content) as view, view[:place] as before, view[place + len(_UNKNOWN) :] as after:
        digest = hashlib.sha256(before)
        digest.update(_UNKNOWN.encode())
        digest.update(after)
    return digest.hexdigest()
