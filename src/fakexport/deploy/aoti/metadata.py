"""Metadata of a compiled package. It is checked before the package's code is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch

from fakexport.exporting.program import plain_name
from fakexport.files.documents import (
    DocumentError,
    Size,
    SizeRange,
    class_name,
    field,
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
"""Key of fakexport's entry in the metadata that torch stores in a package."""

FORMAT = "fakexport.aoti/1"
_DTYPES = {plain_name(each) for each in vars(torch).values() if isinstance(each, torch.dtype)}
_Dtype = Annotated[str, one_of(_DTYPES, "dtype")]


@dataclass(frozen=True)
class TensorDescription:
    """A contiguous tensor that is bound when the package is opened: a weight, or a constant without a value.

    `aliases` are the other names of a tied weight; a file may contain the weight under any of them.
    """

    name: str
    dtype: _Dtype
    shape: tuple[Size, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackageMetadata:
    """fakexport's entry in a package's metadata.

    Args:
        orders: Memory order of each input: its dimensions from the outermost to the innermost. The code only
            accepts inputs with this layout.
        device: The device type that the code was compiled for, `cpu` or `cuda`.
        place: Where the weights are, `inside` or `beside`.
        tensors: The tensors that a weights file must contain; empty if the weights are inside.
        program_id: Hash of the program without its weights. The weights file that was written with the
            package contains the same hash. Empty if the weights are inside.
        unread: Names in the weights file that are not read: constants, because the package has their values,
            and tensors that the code does not use.
        machine, instructions: Architecture such as `x86_64`, and the CPU extensions that the compiler could
            use, sorted; or the GPU's capability, such as `sm_90`.
        libraries_for: Names that operator libraries must register: sorted operators, such as
            `signal_ops.soft_clip.default`, then sorted C++ classes, such as `signal_ops::Polynomial`.
        library_modules: Operator name -> Python module that registers it.
        sizes: The sizes for which the code is, if the package has code for several ranges of sizes.
    """

    signature: Annotated[Signature, Signature.from_dict]
    orders: tuple[tuple[Size, ...], ...]
    device: str
    place: Annotated[str, one_of(("inside", "beside"), "location of weights")]
    tensors: tuple[TensorDescription, ...]
    program_id: str
    unread: tuple[str, ...]
    versions: Mapping[str, str]
    machine: str
    instructions: tuple[str, ...]
    libraries_for: tuple[Annotated[str, _of_a_library], ...]
    library_modules: Mapping[str, Annotated[str, module_name]]
    sizes: tuple[SizeRange, ...] = ()

    def to_text(self) -> str:
        """Return the metadata as JSON; `from_text` reads it."""
        document = {"format": FORMAT, **vars(self), "signature": self.signature.to_dict()}
        document["tensors"] = [asdict(tensor) for tensor in self.tensors]
        document["sizes"] = [
            {"input": each.input, "dim": each.dim, "min": each.min, "max": each.max} for each in self.sizes
        ]
        document["weights"] = {name: document.pop(name) for name in ("place", "tensors", "unread")}
        return json.dumps(document, sort_keys=True)

    @classmethod
    def from_text(cls, content: str) -> PackageMetadata:
        """Parse the output of `to_text` from an untrusted file, or raise a `DocumentError`."""
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


_metadata = reader_of(PackageMetadata)
