"""What fakexport records in an archive in addition to the program: its origin, requirements and hashes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, get_args

from fakexport.container import Digest, fault_of_name
from fakexport.documents import AdapterRecord, CallRecord, ParallelRecord, Parameter, Recipe, UnboundName
from fakexport.error import InvalidValue

MOST_METHODS = 64
MOST_COMPUTED_BYTES = 4 * 2**20
"""Of one computed weight: 1,024 positions of 1,024 numbers, as large Marian models have."""
METHOD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
Prefix = tuple[str, str]
'Prefix of names in the checkpoint, and of the same names in the program: `("encoder.", "")`.'

ALONE = "model"
"The method of a program that was saved alone; torch uses the same name."

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
    """Where the bytes of a weight are.

    Args:
        file: The record of the archive, or the file next to it, relative to the archive's folder.
        offset: Where the tensor's storage begins in it, in bytes.
        length: Bytes of the storage.
        sha256: Hash of these bytes in hex, for a file next to the archive; None for a record.
    """

    file: str
    offset: int
    length: int
    sha256: str | None = None

    @property
    def is_link(self) -> bool:
        """Whether the bytes are in a file next to the archive."""
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
        is_parameter: Whether it is a parameter, not a buffer.
        requires_grad: Whether it requires gradients.
        persistent: Whether a state dict contains it.
        source: Its key in a checkpoint; None if no checkpoint contains it.
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
            raise InvalidValue(
                f"`{self.name}` has {len(self.shape)} dimensions and {len(self.stride)} strides"
            )
        if self.dtype not in DTYPE_BYTES:
            raise InvalidValue(f"`{self.name}` has the unknown dtype {self.dtype!r}")
        if self.extent_bytes > _MOST:
            raise InvalidValue(f"`{self.name}` needs more bytes than 63 bits can count")
        if self.location and self.location.length < self.extent_bytes:
            needed = f"needs {self.extent_bytes} bytes, but `{self.location.file}` has only"
            raise InvalidValue(f"`{self.name}` {needed} {self.location.length}")

    @property
    def extent_bytes(self) -> int:
        """Bytes from the beginning of its storage to the end of its last element; 0 where it has none."""
        elements = extent(self.shape, self.stride)
        return (self.storage_offset + elements) * DTYPE_BYTES[self.dtype] if elements else 0


@dataclass(frozen=True, kw_only=True)
class MethodManifest:
    """The description of one program; the same program and facts give the same one.

    It does not record when, where or by whom the archive was written: a source or a text with an absolute
    path is refused.

    Args:
        versions: Versions of the packages involved, by name: fakexport, torch, transformers.
        source: The source as the user wrote it: `hf:config.json`, `model.py:factory`.
        topology: The target's devices in full, `8xH100-80GB`; None if none were chosen.
        profiles: The device profiles' names, in the order of the devices.
        device_map: Device by module path; `""` is the whole model.
        dtype: The dtype that was asked for; None for the model's own.
        dynamic_shapes: The user's wording; None if every dimension is fixed.
        skipped_checks: Assumptions, and checks that were not made, as sentences.
        load_hooks: Hooks of the model's `load_state_dict` that binding leaves out.
        unbound_constants: The constants without a value.
        library_operators: The operators that torch does not have, sorted. Only the name of a
            library is stored: never a path, and it is never loaded automatically.
        library_modules: For operators registered in Python, the module that did so. It is shown to the user,
            who may import it, and not used otherwise.
        library_classes: The C++ classes of which the program holds objects, `signal_ops::Polynomial`, sorted.
        weights: `none`: weight-less; `inside`: bound; `linked`: bound to files next to the archive, except
            for weights that no file has in the program's form, which are inside.
        tensors: The parameters and buffers, sorted by name.
        recipes: How entries of a checkpoint in another layout become these tensors.
        computed: Weights that a checkpoint may lack, since the code of the model determines them, and the
            record with their elements, row by row; None for a weight that is too large. Only without weights.
        prefix: Prefix of the weights' names in the checkpoint and in the program; None if they are equal.
        call: The part of its inputs and outputs in generation; None if it is not a call of it.
        adapter: How the program needs an adapter; None if it was exported without one.
        parallel: The rank whose part of the model it is; None for all of the model.
        parameters: The parameters of `forward`; empty if the example shows every way to call it.
    """

    versions: Mapping[str, str]
    source: str
    topology: str | None = None
    profiles: tuple[str, ...] = ()
    device_map: Mapping[str, str]
    dtype: str | None = None
    dynamic_shapes: str | None = None
    skipped_checks: tuple[str, ...] = ()
    load_hooks: tuple[str, ...] = ()
    unbound_constants: tuple[UnboundName, ...] = ()
    library_operators: tuple[str, ...] = ()
    library_modules: Mapping[str, str] = field(default_factory=dict)
    library_classes: tuple[str, ...] = ()
    weights: WeightsKind = "none"
    tensors: tuple[TensorEntry, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    computed: Mapping[str, str | None] = field(default_factory=dict)
    prefix: Prefix | None = None
    call: CallRecord | None = None
    adapter: AdapterRecord | None = None
    parallel: ParallelRecord | None = None
    parameters: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        texts = [("source", self.source), ("dynamic shapes", self.dynamic_shapes or "")]
        for what, text in (*texts, *(("skipped check", check) for check in self.skipped_checks)):
            if _MACHINE_PATH.search(text):
                raise InvalidValue(f"the {what} {text!r} is an absolute path; make it relative to a folder")
        for operator in self.library_modules:
            if operator not in self.library_operators:
                raise InvalidValue(
                    f"a module for {operator!r}, which is not a library operator of the program"
                )
        names = [name for tensor in self.tensors for name in (tensor.name, *tensor.aliases)]
        _refuse_twice("tensors", names)
        own = "" if self.prefix is None else self.prefix[1]
        for name in names:
            if not name.startswith(own):
                raise InvalidValue(f"the weight {name!r} does not begin with {own!r}")
        self._check_locations()
        self._check_recipes()
        self._check_computed()

    @property
    def weight_records(self) -> frozenset[str]:
        """The records with the bytes of the weights."""
        locations = (tensor.location for tensor in self.tensors if tensor.location)
        return frozenset(location.file for location in locations if not location.is_link)

    def _check_locations(self) -> None:
        """Refuse a bound archive with a missing location, and a weight-less one with a location."""
        has_location = self.weights != "none"
        for tensor in self.tensors:
            if tensor.location and not has_location:
                raise InvalidValue(f"`{tensor.name}` has a location in a weight-less archive")
            if has_location and not tensor.location and tensor.persistent:
                raise InvalidValue(f"`{tensor.name}` has no location in a bound archive")
            if tensor.location and (fault := fault_of_name(tensor.location.file)):
                raise InvalidValue(f"`{tensor.location.file}`: {fault}")
            if tensor.location and tensor.location.is_link and self.weights != "linked":
                file = tensor.location.file
                raise InvalidValue(f"`{file}` is a link, but the archive contains its weights")

    def _check_computed(self) -> None:
        """Refuse a computed weight that the program does not have, and any in a bound archive."""
        names = {name for tensor in self.tensors for name in (tensor.name, *tensor.aliases)}
        if unknown := sorted(self.computed.keys() - names):
            raise InvalidValue(f"a computed weight {unknown[0]!r}, which is not a weight of the program")
        if self.computed and self.weights != "none":
            raise InvalidValue("computed weights in a bound archive")

    def _check_recipes(self) -> None:
        """Refuse a recipe that refers to a later step or to nothing, or has no result."""
        for recipe in self.recipes:
            if not recipe.entries or not recipe.weights:
                raise InvalidValue("a recipe without entries or without weights")
            count = len(recipe.entries)
            for step in recipe.steps:
                if not step.values or not all(0 <= index < count for index in step.values):
                    raise InvalidValue(f"a recipe's {step.operator} without arguments that come before it")
                count += len(step.numbers) - 1 if step.operator == "split" else 1
            if not all(0 <= index < count for _, index in recipe.weights):
                raise InvalidValue("a recipe with a weight that none of its steps makes")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of an archive: of its programs, of what they share, and of its records.

    Args:
        methods: Each program by the name of its method; a program that was saved alone is called `model`.
        shared: Each weight that several methods have, as (method, name) pairs.
        records: A digest of every record but the manifest, sorted by name.
    """

    methods: Mapping[str, MethodManifest]
    shared: tuple[tuple[tuple[str, str], ...], ...] = ()
    records: tuple[Digest, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.methods) <= MOST_METHODS:
            raise InvalidValue(f"{len(self.methods)} methods; an archive has 1 to {MOST_METHODS}")
        _refuse_twice("records", [record.name for record in self.records])
        self._check_shared()
        self._check_sizes()

    @property
    def is_bundle(self) -> bool:
        """Whether the programs were saved as methods, and not one program alone."""
        return tuple(self.methods) != (ALONE,)

    @property
    def only(self) -> MethodManifest:
        """The program of an archive that has one."""
        (manifest,) = self.methods.values()
        return manifest

    @property
    def tensors(self) -> list[TensorEntry]:
        """The weights of all methods, in their order; one that several methods have is there once."""
        again = {pair for weight in self.shared for pair in weight[1:]}
        return [tensor for pair, tensor in self._pairs() if pair not in again]

    @property
    def shared_tensors(self) -> list[TensorEntry]:
        """The weights that several methods have, each once."""
        first = {weight[0] for weight in self.shared}
        return [tensor for pair, tensor in self._pairs() if pair in first]

    def _pairs(self) -> Iterator[tuple[tuple[str, str], TensorEntry]]:
        for method, manifest in self.methods.items():
            yield from (((method, tensor.name), tensor) for tensor in manifest.tensors)

    def _check_shared(self) -> None:
        """Refuse a pair that is in two weights, and a weight of which one method has two."""
        seen: set[tuple[str, str]] = set()
        for weight in self.shared:
            methods = {method for method, _ in weight}
            if len(weight) < 2 or len(methods) < len(weight):
                raise InvalidValue("a shared weight that belongs to only one method")
            if unknown := sorted(methods - self.methods.keys()):
                raise InvalidValue(f"a shared weight of {unknown[0]!r}, which is not a method")
            if twice := sorted(seen.intersection(weight)):
                raise InvalidValue(f"`{twice[0][1]}` of {twice[0][0]} is in two shared weights")
            seen.update(weight)

    def _check_sizes(self) -> None:
        """Refuse a weight that is not in a record, or extends beyond the end of one."""
        sizes = {record.name: record.size for record in self.records}
        tensors = (tensor for manifest in self.methods.values() for tensor in manifest.tensors)
        for location in (tensor.location for tensor in tensors if tensor.location and self.records):
            if location.is_link:
                continue
            if (size := sizes.get(location.file)) is None:
                raise InvalidValue(f"`{location.file}` is not a record")
            if location.offset + location.length > size:
                raise InvalidValue(f"a tensor extends beyond the end of `{location.file}`")
        for manifest in self.methods.values() if self.records else ():
            for tensor in manifest.tensors:
                _check_computed_sizes(tensor, manifest.computed, sizes)


def _check_computed_sizes(
    tensor: TensorEntry, computed: Mapping[str, str | None], sizes: Mapping[str, int]
) -> None:
    """Refuse a computed weight without a record, or with one that has neither all of its elements nor one."""
    one = DTYPE_BYTES[tensor.dtype]
    size = one * prod(tensor.shape)
    for name in (tensor.name, *tensor.aliases):
        if (record := computed.get(name)) is None:
            continue
        if size > (most := MOST_COMPUTED_BYTES):
            raise InvalidValue(f"the computed weight `{name}` has {size} bytes; at most {most}")
        if sizes.get(record) not in {size, min(one, size)}:
            raise InvalidValue(f"the value of `{name}` does not fit the record `{record}`")


def _refuse_twice(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidValue(f"the {what} contain the name `{name}` twice")
        seen.add(name)


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last, both included; 0 if there are none."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
