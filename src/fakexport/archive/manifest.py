"""The manifest of an archive: its programs, with their sources and weights, and the hashes of its records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Literal

from fakexport.error import InvalidValue
from fakexport.files.container import Digest, fault_of_name
from fakexport.files.documents import (
    AdapterRecord,
    CallRecord,
    Most,
    Name,
    ParallelRecord,
    Parameter,
    Recipe,
    Sentence,
    Sha256,
    Size,
    SizeRange,
    StageRecord,
    UnboundName,
    class_name,
    matching,
    module_name,
    one_of,
    operator_name,
)

MOST_METHODS = 64
MOST_COMPUTED_BYTES = 4 * 2**20
"""Maximum size in bytes of one computed weight: 1,024 x 1,024 float32, as in large Marian models."""
METHOD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
Prefix = tuple[Name, Name]
"""Prefix of weight names in the checkpoint and in the program, such as `("encoder.", "")`."""

ALONE = "model"
"""Method name of a program that was saved alone. torch uses the same name."""

WeightsKind = Literal["none", "inside", "linked"]

DTYPE_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "complex32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes per element. Keys are dtype names as in torch."""

Dtype = Annotated[str, one_of(DTYPE_BYTES, "dtype")]
Device = Annotated[str, matching(re.compile(r"[a-z_]{1,32}(:[0-9]{1,5})?"), "device")]
Version = Annotated[str, matching(re.compile(r"[A-Za-z0-9_.+!-]{1,100}"), "version")]
Sizes = Annotated[tuple[Size, ...], Most(64)]

_MOST = (1 << 63) - 1
_MACHINE_PATH = re.compile(r"(^|[\s'\"=(,\[:])(/[A-Za-z_.]|~|file:/|\\\\|[A-Za-z]:[\\/])")


@dataclass(frozen=True)
class Location:
    """Where the bytes of a weight are stored.

    Args:
        file: The archive's record, or the path of a linked file relative to the archive's folder.
        offset, length: Position of the tensor's storage in the file, and its size, in bytes.
        sha256: Hex hash of these bytes for a linked file; None for a record.
    """

    file: Name
    offset: Size
    length: Size
    sha256: Sha256 | None = None

    @property
    def is_link(self) -> bool:
        """Whether the bytes are in a file next to the archive."""
        return self.sha256 is not None


@dataclass(frozen=True)
class TensorEntry:
    """One parameter or buffer of the program, possibly with several names.

    Args:
        name: Name in the program.
        aliases: The other names of the same tensor, sorted, if it is tied.
        shape, stride: Size and stride of each dimension, in elements.
        storage_offset: Storage offset in elements.
        dtype, device: Names as in torch, such as `float32` and `cuda:0`.
        is_parameter: Whether it is a parameter rather than a buffer.
        requires_grad: Whether it requires gradients.
        persistent: Whether it is in the model's state dict, and so in checkpoints.
        source: Key of the tensor in a checkpoint; None if checkpoints do not contain it.
        location: Where the tensor's bytes are stored; None in a weight-less archive.
    """

    name: Name
    aliases: Annotated[tuple[Name, ...], Most(10_000)]
    shape: Sizes
    stride: Sizes
    storage_offset: Size
    dtype: Dtype
    device: Device
    is_parameter: bool
    requires_grad: bool
    persistent: bool
    source: Name | None = None
    location: Location | None = None

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.stride):
            raise InvalidValue(
                f"`{self.name}` has {len(self.shape)} dimensions but {len(self.stride)} strides"
            )
        if self.dtype not in DTYPE_BYTES:
            raise InvalidValue(f"`{self.name}` has the unknown dtype {self.dtype!r}")
        if self.extent_bytes > _MOST:
            raise InvalidValue(f"`{self.name}` needs more bytes than 63 bits can express")
        if self.location and self.location.length < self.extent_bytes:
            needed = f"needs {self.extent_bytes} bytes, but `{self.location.file}` has only"
            raise InvalidValue(f"`{self.name}` {needed} {self.location.length}")

    @property
    def bytes(self) -> int:
        """Size of the elements in bytes."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def extent_bytes(self) -> int:
        """Bytes from the start of the storage to the end of the last element; 0 if there are no elements."""
        elements = extent(self.shape, self.stride)
        return (self.storage_offset + elements) * DTYPE_BYTES[self.dtype] if elements else 0


@dataclass(frozen=True)
class WeightTotals:
    """Number and size of weights. A tied weight counts once.

    Args:
        count: Number of tensors.
        bytes: Size of all elements.
        by_dtype, by_device: Bytes by dtype, and by device.
    """

    count: int
    bytes: int
    by_dtype: Mapping[str, int]
    by_device: Mapping[str, int]

    @classmethod
    def of(cls, tensors: Iterable[TensorEntry]) -> WeightTotals:
        by_dtype: Counter[str] = Counter()
        by_device: Counter[str] = Counter()
        count = 0
        for tensor in tensors:
            count += 1
            by_dtype[tensor.dtype] += tensor.bytes
            by_device[tensor.device] += tensor.bytes
        by_name = (dict(sorted(sizes.items())) for sizes in (by_dtype, by_device))
        return cls(count, by_dtype.total(), *by_name)


@dataclass(frozen=True, kw_only=True)
class MethodManifest:
    """The description of one program. Equal programs with equal metadata have equal descriptions.

    Args:
        versions: Package name -> version, for fakexport, torch and model libraries such as transformers.
        source: The source as the user wrote it, `hf:config.json`. Absolute paths in texts raise an error.
        topology: The target's devices, such as `8xH100-80GB`; None if no target was chosen.
        profiles: Names of the device profiles, in the order of the devices.
        device_map: Module path -> device; the path `""` is the whole model.
        dtype: The requested dtype; None if the model's dtype was kept.
        dynamic_shapes: Dynamic shapes as the user wrote them; None if all dimensions are static.
        skipped_checks: Sentences about assumptions and about checks that were skipped.
        load_hooks: The model's `load_state_dict` hooks, which `bind` does not run.
        unbound_constants: The constants without a value.
        library_operators: Sorted names of the operators that are defined outside torch.
        library_modules: Operator name -> Python module that registers it, for users to import.
        library_classes: Sorted C++ classes of the program's objects, such as `signal_ops::Polynomial`.
        weights: `none`: weight-less. `inside`: in the archive. `linked`: in files next to it, if they contain
            the weight in the program's form.
        tensors: The parameters and buffers, sorted by name.
        recipes: How to compute tensors from checkpoint entries with a different layout.
        computed: Name -> record of a weight that the model's code computes, so that a checkpoint may omit it,
            in row-major order. None: too large. Empty in bound archives.
        prefix: The prefixes of weight names, in the checkpoint and in the program; None if they are equal.
        call: Which inputs and outputs text generation uses, and for what; None for other programs.
        adapter: How the program uses a LoRA adapter; None if it was exported without one.
        parallel, stage: The rank or pipeline stage that the program computes; None for the whole model.
        sizes: The sizes for which callers use the program, if several programs divide the sizes among them.
        parameters: The parameters of `forward`; empty if arguments must be passed as in the example inputs.
        unpacked_parameters: Number of parameters before quantization packed them; None for other programs.
        settings: The settings in the published `config.json` of the model, as JSON by dotted name.
    """

    versions: Mapping[str, Version]
    source: Sentence
    topology: Sentence | None = None
    profiles: tuple[Sentence, ...] = ()
    device_map: Mapping[str, Device]
    dtype: Dtype | None = None
    dynamic_shapes: str | None = None
    skipped_checks: tuple[Sentence, ...] = ()
    load_hooks: tuple[Sentence, ...] = ()
    unbound_constants: tuple[UnboundName, ...] = ()
    library_operators: tuple[Annotated[str, operator_name], ...] = ()
    library_modules: Mapping[str, Annotated[str, module_name]] = field(default_factory=dict)
    library_classes: tuple[Annotated[str, class_name], ...] = ()
    weights: WeightsKind = "none"
    tensors: tuple[TensorEntry, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    computed: Mapping[str, Name | None] = field(default_factory=dict)
    prefix: Prefix | None = None
    call: CallRecord | None = None
    adapter: AdapterRecord | None = None
    parallel: ParallelRecord | None = None
    stage: StageRecord | None = None
    sizes: tuple[SizeRange, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    unpacked_parameters: Size | None = None
    settings: Mapping[Name, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = [("source", self.source), ("dynamic shapes", self.dynamic_shapes or "")]
        for what, text in (*texts, *(("skipped check", check) for check in self.skipped_checks)):
            if _MACHINE_PATH.search(text):
                raise InvalidValue(f"the {what} {text!r} is an absolute path; make it relative to a folder")
        for operator in self.library_modules:
            if operator not in self.library_operators:
                raise InvalidValue(
                    f"`library_modules` contains {operator!r}, but `library_operators` does not contain it"
                )
        names = [name for tensor in self.tensors for name in (tensor.name, *tensor.aliases)]
        _refuse_twice("tensors", names)
        own = "" if self.prefix is None else self.prefix[1]
        for name in names:
            if not name.startswith(own):
                raise InvalidValue(f"the name of the weight {name!r} does not begin with the prefix {own!r}")
        self._check_locations()
        self._check_recipes()
        self._check_computed()

    @property
    def totals(self) -> WeightTotals:
        """Number and size of the weights."""
        return WeightTotals.of(self.tensors)

    @property
    def weight_records(self) -> frozenset[str]:
        """The archive's own records that contain the bytes of weights."""
        locations = (tensor.location for tensor in self.tensors if tensor.location)
        return frozenset(location.file for location in locations if not location.is_link)

    def _check_locations(self) -> None:
        has_location = self.weights != "none"
        for tensor in self.tensors:
            if tensor.location and not has_location:
                raise InvalidValue(f"`{tensor.name}` has a location in a weight-less archive")
            if has_location and not tensor.location and tensor.persistent:
                raise InvalidValue(f"`{tensor.name}` has no location, but the archive has weights")
            if tensor.location and (fault := fault_of_name(tensor.location.file)):
                raise InvalidValue(f"`{tensor.location.file}`: {fault}")
            if tensor.location and tensor.location.is_link and self.weights != "linked":
                raise InvalidValue(f"`{tensor.location.file}` is linked, but `weights` is not `linked`")

    def _check_computed(self) -> None:
        names = {name for tensor in self.tensors for name in (tensor.name, *tensor.aliases)}
        for unknown in sorted(self.computed.keys() - names):
            raise InvalidValue(f"the computed weight {unknown!r} is not a weight of the program")
        if self.computed and self.weights != "none":
            raise InvalidValue("an archive with weights must not list computed weights")

    def _check_recipes(self) -> None:
        for recipe in self.recipes:
            if not recipe.entries or not recipe.weights:
                raise InvalidValue("a recipe has no entries or no weights")
            count = len(recipe.entries)
            for step in recipe.steps:
                if not step.values or not all(0 <= index < count for index in step.values):
                    raise InvalidValue(f"a {step.operator} of a recipe reads values that no step produces")
                count += len(step.numbers) - 1 if step.operator == "split" else 1
            if not all(0 <= index < count for _, index in recipe.weights):
                raise InvalidValue("a recipe has a weight that none of its steps produces")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of an archive: its programs, the weights that they share, and its records.

    Args:
        methods: Programs by method name; a program that was saved alone is called `model`.
        shared: Each weight that several methods share, as (method, name) pairs.
        records: The name, size and hash of every record except the manifest, sorted by name.
    """

    methods: Annotated[Mapping[str, MethodManifest], Most(MOST_METHODS)]
    shared: tuple[tuple[tuple[Name, Name], ...], ...] = ()
    records: tuple[Digest, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.methods) <= MOST_METHODS:
            raise InvalidValue(f"{len(self.methods)} methods; an archive has 1 to {MOST_METHODS}")
        for method in self.methods:
            if not METHOD_NAME.fullmatch(method):
                raise InvalidValue(f"{method!r} is not a valid method name")
        _refuse_twice("records", [record.name for record in self.records])
        self._check_shared()
        self._check_sizes()

    @property
    def is_bundle(self) -> bool:
        """Whether the archive is a bundle of methods rather than a single unnamed program."""
        return tuple(self.methods) != (ALONE,)

    @property
    def only(self) -> MethodManifest:
        """The manifest of the only program. Raises if there are several."""
        (manifest,) = self.methods.values()
        return manifest

    @property
    def tensors(self) -> list[TensorEntry]:
        """The weights of all methods, in order. A shared weight is listed once."""
        again = {pair for weight in self.shared for pair in weight[1:]}
        return [tensor for pair, tensor in self._by_pair.items() if pair not in again]

    @property
    def shared_tensors(self) -> list[TensorEntry]:
        """The weights that several methods share. Each is listed once."""
        first = {weight[0] for weight in self.shared}
        return [tensor for pair, tensor in self._by_pair.items() if pair in first]

    @property
    def _by_pair(self) -> dict[tuple[str, str], TensorEntry]:
        every = ((method, tensor) for method, about in self.methods.items() for tensor in about.tensors)
        return {(method, tensor.name): tensor for method, tensor in every}

    def _check_shared(self) -> None:
        seen: set[tuple[str, str]] = set()
        for weight in self.shared:
            methods = {method for method, _ in weight}
            if len(weight) < 2 or len(methods) < len(weight):
                raise InvalidValue("a shared weight must list several methods, each of them once")
            if unknown := sorted(methods - self.methods.keys()):
                raise InvalidValue(f"a shared weight belongs to {unknown[0]!r}, which is not a method")
            if twice := sorted(seen.intersection(weight)):
                raise InvalidValue(f"`{twice[0][1]}` of {twice[0][0]} is in two groups of shared weights")
            seen.update(weight)

    def _check_sizes(self) -> None:
        sizes = {record.name: record.size for record in self.records}
        for manifest in self.methods.values() if self.records else ():
            for tensor in manifest.tensors:
                if tensor.location and not tensor.location.is_link:
                    _check_location(tensor.location, sizes)
                _check_computed_sizes(tensor, manifest.computed, sizes)


def _check_location(location: Location, sizes: Mapping[str, int]) -> None:
    if (size := sizes.get(location.file)) is None:
        raise InvalidValue(f"`{location.file}` is not a record")
    if location.offset + location.length > size:
        raise InvalidValue(f"a tensor extends beyond the end of `{location.file}`")


def _check_computed_sizes(
    tensor: TensorEntry, computed: Mapping[str, str | None], sizes: Mapping[str, int]
) -> None:
    """Check that the record of a computed weight contains all of its elements, or exactly one element."""
    one = DTYPE_BYTES[tensor.dtype]
    size = one * prod(tensor.shape)
    for name in (tensor.name, *tensor.aliases):
        if (record := computed.get(name)) is None:
            continue
        if size > (most := MOST_COMPUTED_BYTES):
            raise InvalidValue(f"the computed weight `{name}` has {size} bytes; the limit is {most}")
        if sizes.get(record) not in {size, min(one, size)}:
            raise InvalidValue(f"the value of `{name}` does not fit the record `{record}`")


def _refuse_twice(what: str, names: Iterable[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InvalidValue(f"the {what} contain the name `{twice}` twice")


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of storage elements from the first to the last element; 0 for an empty tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
