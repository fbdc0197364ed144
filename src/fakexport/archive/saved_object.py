"""Read a C++ object from the record that torch wrote, without unpickling it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.tracing.script_objects import (
    class_name,
    is_class_registered,
    object_of_state,
    pickled_object,
)
from fakexport.error import InvalidValue, first_line
from fakexport.files.container import ArchiveError, Limits
from fakexport.files.documents import DocumentError

from .manifest import extent
from .pickled_state import Storage, StoredView, nested_records, read_pickled_state

_STORAGES = {
    "BFloat16Storage": torch.bfloat16,
    "BoolStorage": torch.bool,
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}


@dataclass(frozen=True)
class SavedObject:
    """The content of an object's record: the class, and the result of its `__getstate__`.

    Values (None, bool, int, float, complex, str and CPU tensors) may be nested in tuples, lists and dicts.
    `state_bytes` is the size of the pickle, without tensors.
    """

    class_name: str
    state: Any
    state_bytes: int

    def made(self) -> torch.ScriptObject:
        """Create an object, and set its state with the class's own `__setstate__`."""
        refuse_unregistered_classes([self.class_name])
        try:
            return object_of_state(self.class_name, self.state)
        except ValueError as error:
            raise DocumentError(str(error)) from None


def refuse_unregistered_classes(names: Iterable[str]) -> None:
    """Raise a `DocumentError` with the fix if one of these classes is not registered."""
    for name in names:
        if not is_class_registered(name):
            raise DocumentError(unregistered(name))


def unregistered(name: str) -> str:
    """Return the error message, including the fix, for a C++ class that is not registered."""
    return f"the C++ class {name[:200]} is not registered: pass the file of its library with --library"


def object_record(script_object: torch.ScriptObject) -> bytes:
    """Return an object's record as `torch.export.save` writes it. Raise if it could not be read back."""
    content = pickled_object(script_object)
    try:
        read_saved_object(content, Limits())
    except DocumentError as error:
        raise InvalidValue(
            f"an object of the class {class_name(script_object)}: its record {error}"
        ) from None
    return content


def read_saved_object(content: bytes, limits: Limits) -> SavedObject:
    """Read an object's record without executing code or creating the object."""
    try:
        records = nested_records(content, limits)
    except ArchiveError as error:
        raise DocumentError(error.what) from None
    if "data.pkl" not in records:
        raise DocumentError("has no data.pkl")
    if len(records["data.pkl"]) > limits.state_bytes:
        raise DocumentError(f"has a state of more than {limits.state_bytes} bytes, not counting tensors")
    return with_tensors(bytes(records["data.pkl"]), records)


def with_tensors(pickled: bytes, records: Mapping[str, bytes | memoryview]) -> SavedObject:
    """Read a pickled object whose tensors are in records such as `data/0`."""
    found = read_pickled_state(pickled)
    return SavedObject(found.class_name, _Tensors(records).put_into(found.state), len(pickled))


class _Tensors:
    """Create the tensors of a saved state. Tensors that shared a storage when saved share one again."""

    def __init__(self, records: Mapping[str, bytes | memoryview]) -> None:
        self._records = records
        self._storages: dict[str, bytearray] = {}

    def put_into(self, state: Any) -> Any:
        """Return the state with each `StoredView` replaced by its tensor."""
        if isinstance(state, StoredView):
            return self._tensor(state)
        if isinstance(state, tuple):
            return tuple(map(self.put_into, state))
        if isinstance(state, list):
            return list(map(self.put_into, state))
        if isinstance(state, dict):
            return {key: self.put_into(value) for key, value in state.items()}
        return state

    def _tensor(self, view: StoredView) -> torch.Tensor:
        dtype = _STORAGES.get(view.storage.dtype)
        if dtype is None:
            raise DocumentError(f"has a tensor with the unsupported storage type {view.storage.dtype[:40]!r}")
        content = self._content(view.storage)
        elements = extent(view.shape, view.stride)
        if elements and (view.offset + elements) * dtype.itemsize > len(content):
            raise DocumentError(f"has a tensor that is larger than its storage of {len(content)} bytes")
        try:
            with real_execution():
                if not elements:
                    tensor = torch.empty(view.shape, dtype=dtype)
                else:
                    flat = torch.frombuffer(content, dtype=dtype, count=len(content) // dtype.itemsize)
                    tensor = flat.as_strided(view.shape, view.stride, view.offset)
                return tensor.requires_grad_() if view.requires_grad else tensor
        except RuntimeError as error:  # For example, sizes overflow, or integers require gradients.
            raise DocumentError(f"has a tensor that torch cannot create: {first_line(error)}") from None

    def _content(self, storage: Storage) -> bytearray:
        name = f"data/{storage.record}"
        if name not in self._records:
            raise DocumentError(f"does not contain the record {name[:80]!r} of a tensor")
        if storage.record not in self._storages:
            self._storages[storage.record] = bytearray(self._records[name])
        return self._storages[storage.record]
