"""Map the arguments of a call to their records.

A record is stored as an attribute of its fake tensor. Therefore, both are freed together, and
`torch.utils.swap_tensors` also swaps the records. A weak map would need a weak reference to every parameter,
and `Module.to` rejects such parameters.
"""

from __future__ import annotations

import enum
import functools
import weakref
from typing import Any

import torch

from fakexport._torch.emulation.fake_tensors import FakeTensor, memory_of
from fakexport._torch.emulation.wrapper_subclasses import held_bytes, is_wrapper
from fakexport._torch.operators.real_execution import real_execution

from .records import Args, Constant, Kwargs, Operation, Output, StorageRecord, TensorRecord, Unknown

_RECORD = "_fakexport_record"
_MEMORY = "_fakexport_memory"
_PLAIN = frozenset(
    {int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
# `int` and `float` are not included, because 1, 1.0 and True are the same dict key.
_SHAREABLE = frozenset({bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
# Types of non-tensor arguments whose values cannot change before a replay.
_UNCHANGING = (
    int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.SymInt, torch.SymFloat, torch.SymBool, torch.Size, enum.Enum,
)  # fmt: skip
_LARGEST_COPY_BYTES = 2**20
_clone = torch.ops.aten.clone.default


def record_of(tensor: torch.Tensor) -> TensorRecord:
    """Return the record of a fake tensor.

    A tensor that was created outside of a recording gets a new record, usually with an unknown value.
    """
    record: TensorRecord | None = vars(tensor).get(_RECORD)
    return _new_record(tensor) if record is None else record


def has_record(tensor: torch.Tensor) -> bool:
    """Return whether a fake tensor has a record."""
    return _RECORD in vars(tensor)


def set_record(tensor: torch.Tensor, record: TensorRecord) -> None:
    """Set the record of a fake tensor, and store which memory the record describes."""
    attributes = vars(tensor)
    attributes[_RECORD] = record
    memory = memory_of(tensor)
    attributes[_MEMORY] = _Memory(memory)
    if memory is not None:
        _owners[memory._cdata] = record.storage


_owners: weakref.WeakValueDictionary[int, StorageRecord] = weakref.WeakValueDictionary()


def owner_of(storage: Any) -> StorageRecord | None:
    """Return the record of a storage, or None if the storage belongs to no recorded fake tensor."""
    if isinstance(storage, torch.TypedStorage):
        storage = storage._untyped_storage
    return _owners.get(storage._cdata) if isinstance(storage, torch.UntypedStorage) else None


def has_other_memory(tensor: torch.Tensor) -> bool:
    """Return whether a fake tensor's memory differs from the recorded one, as after `tensor.data = x`."""
    known: _Memory | None = vars(tensor).get(_MEMORY)
    if known is None or known.storage is None:
        return False
    now = memory_of(tensor)
    return now is None or now._cdata != known.storage._cdata


def note_clone(tensor: torch.Tensor, clone: torch.Tensor) -> None:
    """Store the memory of a clone, because `copy.deepcopy` copies the tensor's record after cloning it."""
    known: _Memory | None = vars(tensor).get(_MEMORY)
    if known is not None and not has_other_memory(tensor):
        known.cloned = memory_of(clone)


class _Memory:
    """The memory that a fake tensor had when its record was set; `storage` is None if it is unknown.

    The storage object, which has no data, is kept alive so that its address is not reused. `cloned` is the
    memory of the latest clone of the tensor.
    """

    __slots__ = ("cloned", "storage")

    def __init__(self, storage: torch.UntypedStorage | None) -> None:
        self.storage = storage
        self.cloned: torch.UntypedStorage | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Memory:
        # `copy.deepcopy` of a fake tensor clones it, and then copies its attributes, including this one. If
        # no clone was made, the memory of the copy differs from the memory in its record.
        cloned, self.cloned = self.cloned, None
        return _Memory(cloned if cloned is not None else self.storage)

    def __reduce__(self) -> tuple[type[_Memory], tuple[None]]:
        return _Memory, (None,)


def constant_of(real: torch.Tensor) -> Constant | Unknown:
    """Return a reference to a real tensor in its current state.

    Tensors without a version counter are copied: inference tensors, and memory of NumPy or other libraries.
    """
    is_of_numpy = is_of_other_library(real)
    if not (real.is_inference() or is_of_numpy):
        return Constant(real, real._version)
    if held_bytes(real) > _LARGEST_COPY_BYTES and not is_of_numpy:
        return Unknown("a large inference tensor, whose later changes cannot be detected")
    with real_execution():
        return Constant(real.clone(), 0, is_of_numpy)


def is_of_other_library(tensor: torch.Tensor) -> bool:
    """Return whether torch does not own the memory of a real tensor, as after `torch.from_numpy`."""
    return (
        tensor.layout is torch.strided and not is_wrapper(tensor) and not tensor.untyped_storage().resizable()
    )


def made_from(real: torch.Tensor) -> TensorRecord:
    """Return a record for a fake tensor whose value is that of a real tensor. The value is not copied."""
    return TensorRecord(Output(Operation(_clone, (constant_of(real),), {}), 0))


def _new_record(tensor: torch.Tensor) -> TensorRecord:
    known = getattr(tensor, "constant", None)  # Fake mode keeps the value of a literal with one element.
    text = f"a fake tensor of shape {tuple(tensor.shape)} that was created outside of the recording"
    record = TensorRecord(Unknown(text)) if known is None else made_from(known)
    set_record(tensor, record)
    return record


class Inputs:
    """The arguments of an operator call, with references to records instead of tensors.

    `records` are the records of the arguments that are fake tensors, in order. `has_real` is true if real
    tensors are also among the arguments.
    """

    __slots__ = ("args", "has_real", "kwargs", "records")

    def __init__(self, args: Args, kwargs: Kwargs) -> None:
        self.has_real = False
        self.records: list[TensorRecord] = []
        self.args = tuple([a if type(a) in _PLAIN else self._refer(a) for a in args])
        self.kwargs = self._refer_named(kwargs) if kwargs else _NO_KWARGS

    def _refer(self, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            record = record_of(value)
            self.records.append(record)
            return record.output
        if isinstance(value, torch.Tensor):
            self.has_real = True
            return constant_of(value)
        if isinstance(value, list | tuple):
            return [item if type(item) in _PLAIN else self._refer(item) for item in value]
        if isinstance(value, torch.Generator):
            return None  # The operator's draw tracks the generator itself.
        if isinstance(value, _UNCHANGING):
            return value
        return Unknown(f"an operator argument of type {type(value).__name__}, which may have changed later")

    def _refer_named(self, kwargs: Kwargs) -> dict[str, Any]:
        if all(type(a) in _SHAREABLE for a in kwargs.values()):
            return _shared(tuple(kwargs.items()))
        return {k: a if type(a) in _PLAIN else self._refer(a) for k, a in kwargs.items()}

    def writes_before(self, overwritten: TensorRecord | None) -> tuple[Operation, ...]:
        """Return the last write into the memory of each input, except memory that is fully overwritten."""
        if not self.records:
            return ()
        spared = overwritten.storage if overwritten is not None else None
        if spared is not None and sum(record.storage is spared for record in self.records) > 1:
            spared = None  # Another argument also reads this memory.
        writes = {id(r.storage): r.storage.last_write for r in self.records if r.storage is not spared}
        return tuple([write for write in writes.values() if write is not None])


_NO_KWARGS: dict[str, Any] = {}


@functools.lru_cache(maxsize=256)
def _shared(items: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return the same dict object for equal keyword arguments. This saves memory for large models."""
    return dict(items)
