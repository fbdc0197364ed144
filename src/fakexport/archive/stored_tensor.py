"""The records of one program, and entries of torch's configs, which describe the records of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from fakexport.archive.manifest import DTYPE_BYTES, extent
from fakexport.files.container import Container, faults_named, is_object_record
from fakexport.files.documents import DocumentError, boolean, entries, field, items, mapping, text

from .codec.value_reader import read_device, read_dtype


@dataclass(frozen=True)
class MethodRecords:
    """Names of the records in which torch's format stores one program.

    Args:
        method: The program's name. A single program is called `model`, as in torch.
    """

    method: str = "model"

    @property
    def model(self) -> str:
        """Record of the graph."""
        return f"models/{self.method}.json"

    @property
    def weights(self) -> str:
        """Record of the config that maps each weight to its record."""
        return f"data/weights/{self.method}_weights_config.json"

    @property
    def constants(self) -> str:
        """Record of the config that maps each constant to its record."""
        return f"data/constants/{self.method}_constants_config.json"

    @property
    def sample_inputs(self) -> str:
        """Record of the example inputs. fakexport never writes their real values."""
        return f"data/sample_inputs/{self.method}.pt"


def apart(config: str) -> str:
    """Return the name of the record for a config that names tensors outside the archive.

    The name differs from torch's, because Netron opens an archive without a config, but not an archive whose
    config names missing tensors. Stock torch opens neither.
    """
    return f"extra/fakexport/{config.rpartition('/')[2]}"


def config_record(config: str, present: Collection[str]) -> str:
    """Return the name of the record in which an archive with the records `present` stores a config."""
    return apart(config) if config not in present and apart(config) in present else config


MODEL = MethodRecords().model
WEIGHTS_CONFIG = MethodRecords().weights
CONSTANTS_CONFIG = MethodRecords().constants


T = TypeVar("T")
_DIMENSIONS = 64


@dataclass(frozen=True)
class StoredTensor:
    """A tensor and the record that contains its bytes.

    Args:
        record: Record name without its folder, such as `weight_0`. Several tensors may share a record.
        is_parameter: Whether it is a `torch.nn.Parameter`.
        is_pickled: Whether the record is a pickle; otherwise it contains the tensor's bytes.
        dtype, device: Names as in torch, such as `float32` and `cuda:0`.
        shape, stride: Sizes and strides in elements.
        offset: Position of the tensor's first element in the record, in elements.
    """

    record: str
    is_parameter: bool
    is_pickled: bool
    dtype: str
    device: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool

    @classmethod
    def read(cls, payload: Any) -> StoredTensor:
        """Read one entry of a payload config."""
        owner = mapping(payload)
        meta = field(owner, "tensor_meta", mapping)
        shape, stride = field(meta, "sizes", _sizes), field(meta, "strides", _sizes)
        if len(shape) != len(stride):
            raise DocumentError(f"{len(shape)} sizes but {len(stride)} strides").within("tensor_meta")
        return cls(
            record=field(owner, "path_name", lambda value: text(value, 500)),
            is_parameter=field(owner, "is_param", boolean),
            is_pickled=field(owner, "use_pickle", boolean),
            dtype=field(meta, "dtype", read_dtype),
            device=field(meta, "device", read_device),
            shape=shape,
            stride=stride,
            offset=field(meta, "storage_offset", _plain_int),
            requires_grad=field(meta, "requires_grad", boolean),
        )

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def needed_bytes(self) -> int:
        """Bytes from the start of the record to the end of the tensor; 0 if the tensor has no elements."""
        elements = extent(self.shape, self.stride)
        return (self.offset + elements) * DTYPE_BYTES[self.dtype] if elements else 0


@dataclass(frozen=True)
class StoredObject:
    """A C++ object and the record that contains its state.

    Args:
        record: Record name without its folder, such as `custom_obj_0`.
    """

    record: str

    @property
    def config(self) -> dict[str, Any]:
        """The entry for a payload config, as torch writes it."""
        return {"path_name": self.record, "is_param": False, "use_pickle": True, "tensor_meta": None}


def read_constant(payload: Any) -> StoredTensor | StoredObject:
    """Read one entry of the constants' config, for a tensor or a C++ object."""
    owner = mapping(payload)
    if owner.get("tensor_meta", owner) is not None:
        return StoredTensor.read(payload)
    stored = StoredObject(field(owner, "path_name", lambda value: text(value, 500)))
    if not is_object_record(f"data/constants/{stored.record}") or owner != stored.config:
        raise DocumentError("neither a tensor nor a C++ object")
    return stored


def read_config(container: Container, config: str, read: Callable[[Any], T]) -> dict[str, T]:
    """Return the entries of torch's config for a program's weights or constants, by name."""
    place = config_record(config, container.entries)
    with faults_named(container.path, place):
        return field(mapping(container.json(place)), "config", lambda value: entries(value, read))


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(items(value, _plain_int, _DIMENSIONS))


def _plain_int(value: Any) -> int:
    number = mapping(value).get("as_int")
    if type(number) is not int or not 0 <= number < 2**63:
        raise DocumentError("expected a size that is a plain integer")
    return number
