"""What fakexport says of an archive beside the program: where it came from, what it needs, its hashes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from fakexport.archive.container.record_name import fault_of_name
from fakexport.archive.container.writer import Digest
from fakexport.archive.extent import extent
from fakexport.documents.recipe import Recipe

if TYPE_CHECKING:
    from fakexport.program.unbound_constant import UnboundConstant

__all__ = [
    "DTYPE_BYTES",
    "FORMAT",
    "Location",
    "Manifest",
    "TensorEntry",
    "UnboundName",
    "WeightsKind",
]

FORMAT = "fakexport.archive/1"

WeightsKind = Literal["none", "inside", "linked"]
WEIGHTS_KINDS: tuple[str, ...] = get_args(WeightsKind)

DTYPE_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of one element, by torch's name of the dtype."""

_MOST = (1 << 63) - 1
_MACHINE_PATH = re.compile(r"(^|[\s'\"=(,\[:])(/[A-Za-z_.]|~|file:/|\\\\|[A-Za-z]:[\\/])")


@dataclass(frozen=True)
class Location:
    """Where the bytes of a weight lie.

    Args:
        file: The record of the archive, or the file beside it, relative to the archive's folder.
        offset: Where the tensor's storage begins in it, in bytes.
        length: Bytes of the storage.
        sha256: Of these bytes, in hex, of a file beside the archive; None for a record, which has its own.
    """

    file: str
    offset: int
    length: int
    sha256: str | None = None

    @property
    def is_link(self) -> bool:
        """Whether the bytes are in a file beside the archive."""
        return self.sha256 is not None


@dataclass(frozen=True)
class TensorEntry:
    """One parameter or buffer of the program.

    Args:
        name: Its name in the program.
        aliases: Its other names, where it is tied, sorted.
        shape: Its dimensions.
        stride: In elements, as many as dimensions.
        storage_offset: In elements.
        dtype: torch's name without the `torch.`.
        device: torch's name: `cpu`, `cuda:0`.
        is_parameter: Whether it is a parameter; a buffer else.
        requires_grad: Whether it asks for gradients.
        persistent: Whether a state dict has it.
        source: The key under which a checkpoint brings it; None where no checkpoint does.
        location: Where its bytes are; None in a weight-less archive.
    """

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int
    dtype: str
    device: str
    is_parameter: bool
    requires_grad: bool
    persistent: bool
    source: str | None = None
    location: Location | None = None

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.stride):
            raise ValueError(f"`{self.name}` has {len(self.shape)} dimensions and {len(self.stride)} strides")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"`{self.name}` has the unknown dtype {self.dtype!r}")
        if self.extent_bytes > _MOST:
            raise ValueError(f"`{self.name}` needs more bytes than 63 bits can count")
        if self.location and self.location.length < self.extent_bytes:
            needed = f"needs {self.extent_bytes} bytes and `{self.location.file}` gives it"
            raise ValueError(f"`{self.name}` {needed} {self.location.length}")

    @property
    def extent_bytes(self) -> int:
        """Bytes from the beginning of its storage to the end of its last element; 0 where it has none."""
        elements = extent(self.shape, self.stride)
        return (self.storage_offset + elements) * DTYPE_BYTES[self.dtype] if elements else 0


@dataclass(frozen=True)
class UnboundName:
    """A constant of the program that has no value; see `capture.recovered.UnboundConstant`.

    Args:
        name: Its name in `program.constants`.
        reason: `parameter`, `random` or `unknown`.
        detail: Why, as a sentence without capital and period.
        weight: The parameter or buffer it comes from, where there is one.
        operator: The operator that read the weight or drew the numbers, where there is one.
    """

    name: str
    reason: str
    detail: str
    weight: str | None = None
    operator: str | None = None

    @classmethod
    def of(cls, constant: UnboundConstant) -> UnboundName:
        """What the archive keeps of it: all but the span, which is a path of this machine."""
        return cls(constant.name, constant.reason, constant.detail, constant.weight, constant.operator)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of an archive; the same program and targets give the same one.

    Nothing in it tells when, where or by whom the archive was made: a source or a text with an absolute
    path is refused.

    Args:
        versions: Of the packages that took part, by name: fakexport, torch, transformers.
        source: The source as the user wrote it: `hf:config.json`, `model.py:factory`.
        topology: The target's devices in full, `8xH100-80GB`; None where none were chosen.
        profiles: The device profiles' names, in the order of the devices.
        device_map: Device by module path; `""` is the whole model.
        dtype: The dtype that was asked for; None for the model's own.
        dynamic_shapes: The user's wording; None where every dimension is fixed.
        skipped_checks: What was assumed and which checks were not made, as sentences.
        unbound_constants: The constants without a value.
        library_operators: The operators that torch does not have, sorted. A name is all that is known of a
            library: never a path, and nothing is loaded because of it.
        library_modules: Of those that were made in Python, the module that did. It is shown to the user, who
            may import it; nothing else becomes of it.
        library_classes: The C++ classes of which the program holds objects, `signal_ops::Polynomial`, sorted.
        weights: `none`: a weight-less archive; `inside`: bound; `linked`: bound to files beside it,
            save what none of them has as the program wants it, which is inside.
        tensors: The parameters and buffers, sorted by name.
        recipes: How entries of a checkpoint that is laid out in another way become these tensors.
        prefix: How the names of the weights begin in the checkpoint, and in the program; None where they are
            alike. A program that comes out of a bundle has one.
        records: A digest of every record but the manifest, sorted by name.
    """

    versions: Mapping[str, str]
    source: str
    topology: str | None = None
    profiles: tuple[str, ...] = ()
    device_map: Mapping[str, str]
    dtype: str | None = None
    dynamic_shapes: str | None = None
    skipped_checks: tuple[str, ...] = ()
    unbound_constants: tuple[UnboundName, ...] = ()
    library_operators: tuple[str, ...] = ()
    library_modules: Mapping[str, str] = field(default_factory=dict)
    library_classes: tuple[str, ...] = ()
    weights: WeightsKind = "none"
    tensors: tuple[TensorEntry, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    prefix: tuple[str, str] | None = None
    records: tuple[Digest, ...] = ()

    def __post_init__(self) -> None:
        texts = [("source", self.source), ("dynamic shapes", self.dynamic_shapes or "")]
        for what, text in (*texts, *(("skipped check", check) for check in self.skipped_checks)):
            if _MACHINE_PATH.search(text):
                raise ValueError(f"the {what} {text!r} names an absolute path; give it relative to a folder")
        for operator in self.library_modules:
            if operator not in self.library_operators:
                raise ValueError(f"a module for {operator!r}, which is no library operator of the program")
        _refuse_twice("records", [record.name for record in self.records])
        names = [name for tensor in self.tensors for name in (tensor.name, *tensor.aliases)]
        _refuse_twice("tensors", names)
        has_location = self.weights != "none"
        for tensor in self.tensors:
            if tensor.location and not has_location:
                raise ValueError(f"`{tensor.name}` has a location in a weight-less archive")
            if has_location and not tensor.location and tensor.persistent:
                raise ValueError(f"`{tensor.name}` has no location in a bound archive")
        self._check_files()
        self._check_recipes()
        if self.prefix is not None:
            self.check_prefix(self.prefix)

    def check_prefix(self, prefix: tuple[str, str]) -> None:
        """Refuses a prefix with which a weight does not begin.

        Raises:
            ValueError: it names the weight.
        """
        for tensor in self.tensors:
            for name in (tensor.name, *tensor.aliases):
                if not name.startswith(prefix[1]):
                    raise ValueError(f"the weight {name!r} does not begin with {prefix[1]!r}")

    def _check_recipes(self) -> None:
        """Refuses a recipe that refers to what is not there yet, or makes nothing."""
        for recipe in self.recipes:
            if not recipe.entries or not recipe.weights:
                raise ValueError("a recipe without entries or without weights")
            for step in recipe.steps:
                if not step.values:
                    raise ValueError(f"a recipe's {step.operator} of nothing")

    def _check_files(self) -> None:
        """Refuses a location outside of the archive's records and of the files below its folder."""
        sizes = {record.name: record.size for record in self.records}
        for location in (tensor.location for tensor in self.tensors if tensor.location):
            if fault := fault_of_name(location.file):
                raise ValueError(f"`{location.file}`: {fault}")
            if location.is_link and self.weights != "linked":
                raise ValueError(f"`{location.file}` is a link in an archive that has its weights inside")
            if not location.is_link and self.records:
                size = sizes.get(location.file)
                if size is None:
                    raise ValueError(f"`{location.file}` is no record")
                if location.offset + location.length > size:
                    raise ValueError(f"a tensor lies beyond the end of `{location.file}`")


def _refuse_twice(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"the {what} name `{name}` twice")
        seen.add(name)
