"""Metadata of a compiled package, checked before its code is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fakexport.documents import (
    DocumentError,
    class_name,
    entries,
    field,
    integer,
    items,
    mapping,
    module_name,
    one_of,
    operator_name,
    parse_json,
    reader_of,
    text,
)

from ..signature import Signature

KEY = "fakexport"
"Key of fakexport's entry in the metadata of torch's package."

FORMAT = "fakexport.aoti/1"
_PLACES = ("inside", "beside")
_DTYPES_OF_WEIGHTS = 64


@dataclass(frozen=True)
class TensorDescription:
    """A contiguous weight, or constant without a value, that is bound when the package is opened.

    The code knows it by `name`; `dtype` is torch's name without `torch.`. A file may have any of the
    `aliases`, the other names of a tied weight.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackageMetadata:
    """The entry `fakexport` in a package's metadata.

    Args:
        signature: Inputs and outputs of a call.
        orders: For each input, its dimensions from the outermost in memory to the innermost: the code only
            accepts inputs with that layout.
        device: What it was compiled for, `cpu` or `cuda`.
        place: Where the weights are.
        tensors: What a file of weights must contain; empty if they are inside.
        program_id: Identifies the program apart from its weights; a file of weights that was written with the
            package has it too. Empty if the weights are inside.
        unread: Names of the program that such a file may contain and that are not read from it: constants,
            whose values are in the package, and what the code does not use.
        versions: Versions of torch and fakexport.
        machine: Architecture of the processor, `x86_64`.
        instructions: Extensions that the compiler could use, sorted; or the GPU's capability, `sm_90`.
        libraries_for: What libraries register: operators, `signal_ops.soft_clip.default`, and then
            C++ classes, `signal_ops::Polynomial`; both sorted.
        library_modules: For operators registered in Python, the module that does so.
    """

    signature: Signature
    orders: tuple[tuple[int, ...], ...]
    device: str
    place: str
    tensors: tuple[TensorDescription, ...]
    program_id: str
    unread: tuple[str, ...]
    versions: Mapping[str, str]
    machine: str
    instructions: tuple[str, ...]
    libraries_for: tuple[str, ...]
    library_modules: Mapping[str, str]

    def to_text(self) -> str:
        """Return as JSON; `from_text` reads it."""
        document = {"format": FORMAT, **vars(self), "signature": self.signature.to_dict()}
        document["tensors"] = [asdict(tensor) for tensor in self.tensors]
        document["weights"] = {name: document.pop(name) for name in ("place", "tensors", "unread")}
        return json.dumps(document, sort_keys=True)

    @classmethod
    def from_text(cls, content: str) -> PackageMetadata:
        """Read what `to_text` wrote, from an untrusted file.

        Raises:
            DocumentError: it is something else.
        """
        owner = mapping(parse_json(content.encode()))
        field(owner, "format", one_of((FORMAT,), "format that this fakexport version reads"))
        weights = field(owner, "weights", mapping)
        found = _metadata({**{name: owner[name] for name in owner.keys() - {"format", "weights"}}, **weights})
        shapes = [tensor.shape for tensor in found.signature.inputs]
        if [sorted(order) for order in found.orders] != [list(range(len(shape))) for shape in shapes]:
            raise DocumentError("`orders` do not match the inputs")
        return found


def _of_a_library(value: Any) -> str:
    return class_name(value) if "::" in text(value) else operator_name(value)


def _size(value: Any) -> int:
    return integer(value, 0)


_tensor = reader_of(
    TensorDescription, by_type={int: _size}, dtype=lambda value: text(value, _DTYPES_OF_WEIGHTS)
)
_metadata = reader_of(
    PackageMetadata,
    by_type={int: _size, Signature: Signature.from_dict, TensorDescription: _tensor},
    place=one_of(_PLACES, "location of weights"),
    versions=lambda value: entries(value, text),
    libraries_for=lambda value: tuple(items(value, _of_a_library)),
    library_modules=lambda value: entries(value, module_name),
)
