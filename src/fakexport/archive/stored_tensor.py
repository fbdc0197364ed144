"""The entry of torch's config for the record of one tensor or C++ object."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from fakexport.container import is_object_record
from fakexport.documents import DocumentError, boolean, field, items, mapping, text

from .codec.value_decoder import read_device, read_dtype
from .manifest import extent

_DIMENSIONS = 64


@dataclass(frozen=True)
class StoredTensor:
    """A tensor and the record that contains its bytes.

    Args:
        record: Its name in the folder of its kind, `weight_0`; several tensors may share one.
        is_parameter: Whether it is a `torch.nn.Parameter`.
        is_pickled: Whether torch would unpickle the record; else it has the bytes.
        shape, stride: In elements.
        offset: Where it begins in the record, in elements.
    """

    record: str
    is_parameter: bool
    is_pickled: bool
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool

    @classmethod
    def read(cls, payload: Any) -> StoredTensor:
        """Return one entry of a payload configuration.

        Raises:
            DocumentError: a field is missing or invalid, or the tensor is not strided.
        """
        owner = mapping(payload)
        meta = field(owner, "tensor_meta", mapping)
        shape, stride = field(meta, "sizes", _sizes), field(meta, "strides", _sizes)
        if len(shape) != len(stride):
            raise DocumentError(f"{len(shape)} sizes and {len(stride)} strides").within("tensor_meta")
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
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def needed_bytes(self) -> int:
        """Bytes from the beginning of the record to the end of the tensor; 0 where it has no elements."""
        elements = extent(self.shape, self.stride)
        return (self.offset + elements) * self.dtype.itemsize if elements else 0


@dataclass(frozen=True)
class StoredObject:
    """A C++ object.

    Args:
        record: Its name in the folder of constants, `custom_obj_0`.
    """

    record: str

    @property
    def config(self) -> dict[str, Any]:
        """The entry of a payload configuration, as torch writes it."""
        return {"path_name": self.record, "is_param": False, "use_pickle": True, "tensor_meta": None}


def read_constant(payload: Any) -> StoredTensor | StoredObject:
    """Return one entry of the configuration of constants.

    Raises:
        DocumentError: as for `StoredTensor.read`.
    """
    owner = mapping(payload)
    if owner.get("tensor_meta", owner) is not None:
        return StoredTensor.read(payload)
    stored = StoredObject(field(owner, "path_name", lambda value: text(value, 500)))
    if not is_object_record(f"data/constants/{stored.record}") or owner != stored.config:
        raise DocumentError("neither a tensor nor a C++ object")
    return stored


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(items(value, _plain_int, _DIMENSIONS))


def _plain_int(value: Any) -> int:
    number = mapping(value).get("as_int")
    if type(number) is not int or not 0 <= number < 2**63:
        raise DocumentError("expected a size that is a plain number")
    return number
