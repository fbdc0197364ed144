"""Records of how a fake tensor was created: operators and their dependencies.

The records form a graph whose references point backwards in time: an operator references the outputs that it
used and, for each of these outputs, the last operator that wrote into the output's memory. Therefore, an
operator's record is freed as soon as no tensor and no later operator needs it. Records do not reference fake
tensors.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from fakexport._torch.operators.real_execution import real_execution


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a strided tensor as bytes, with an additional last dimension."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.unsqueeze(-1).view(torch.uint8)


Run = Callable[..., Any]
Args = Sequence[Any]
Kwargs = Mapping[str, Any]
"""An operator call as passed to an observer: the function that runs it, and its arguments."""
_sequence = itertools.count()
_copy = torch.ops.aten.copy_.default


@dataclass(slots=True, eq=False, repr=False)
class Operation:
    """One recorded operator call.

    Args:
        after: For the memory of each argument, the last operator that wrote into it before the call.
    """

    operator: Any  # The operator overload, or a Python function with the same arguments.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    after: tuple[Operation, ...] = ()
    default_dtype: torch.dtype = torch.float32  # The default dtype at the time of the call.
    number: int = field(init=False, default_factory=lambda: next(_sequence))

    @property
    def name(self) -> str:
        """`aten.add.Tensor`, or the name of the function."""
        return self.operator.__name__ if isinstance(self.operator, FunctionType) else str(self.operator)

    def __repr__(self) -> str:
        shown = [*map(_shown, self.args), *(f"{k}={_shown(v)}" for k, v in self.kwargs.items())]
        return f"%{self.number} = {self.name}({', '.join(shown)})"

    def references(self) -> Iterator[Output]:
        """Return those arguments that are outputs of other operators."""
        return (value for value in leaves((self.args, self.kwargs)) if isinstance(value, Output))

    def needs(self) -> Iterator[Operation]:
        """Yield the operators that must run before this one."""
        yield from self.after
        for reference in self.references():
            yield reference.operation


@dataclass(slots=True, eq=False, repr=False)
class Output:
    """One of the output tensors of an operator."""

    operation: Operation
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A real tensor that an operator used.

    Args:
        tensor: The tensor itself; a copy if torch does not count changes of the tensor, which is the case for
            inference tensors and for memory of NumPy or other libraries.
        version: The tensor's version counter at the time of the call, or None if the tensor holds the
            contents of a NumPy array that shares memory with a recorded tensor.
    """

    tensor: torch.Tensor
    version: int | None
    is_of_numpy: bool = False  # Whether the original tensor used memory that torch does not own.


class Shown:
    """A NumPy array that shares memory with a recorded tensor.

    Python can write into the array without calling an operator.

    Args:
        real: A real tensor that uses the memory of the array. A replay does not write into it.
    """

    __slots__ = ("_known", "output", "real")

    def __init__(self, output: Output, real: torch.Tensor) -> None:
        self.output = output
        self.real = real
        self._known = real.clone()

    def change(self) -> torch.Tensor | None:
        """Return a copy of the array's contents if they changed since the last call."""
        if torch.equal(bits(self.real), bits(self._known)):
            return None
        self._known = self.real.clone()
        return self._known

    def write(self, value: torch.Tensor) -> None:
        """Update the array after an operator wrote into the tensor."""
        self.real.copy_(value)
        self._known = self.real.clone()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A tensor that an operator used, but that has no recorded history."""

    description: str


class StorageRecord:
    """The record of memory that a tensor and its views share.

    `last_write` is the last operator that wrote into the memory. `edits` lists descriptions of unrecorded
    changes. If tensors that share memory are copied with `copy.deepcopy`, their copies share one `edits`
    list. (Outside of a recording, these copies do not share memory, unlike copies of real tensors.) After a
    tensor in this memory was materialized, `real` holds the real memory and the last write at that time.
    `shown` lists the NumPy arrays that share the memory.
    """

    __slots__ = ("__weakref__", "_last_write", "edits", "has_changed_geometry", "real", "shown")

    def __init__(self) -> None:
        self._last_write: Operation | None = None
        self.shown: list[Shown] = []
        self.has_changed_geometry = False
        self.edits: list[str] = []
        self.real: tuple[torch.UntypedStorage, Operation | None] | None = None

    @property
    def last_write(self) -> Operation | None:
        """The last operator that wrote into the memory. This includes writes through NumPy."""
        if self.shown:
            self._note_changes()
        return self._last_write

    @last_write.setter
    def last_write(self, operation: Operation) -> None:
        self._last_write = operation

    def _note_changes(self) -> None:
        with real_execution():
            changes = [(each.output, each.change()) for each in self.shown]
        for output, value in changes:
            if value is not None and len(self.shown) > 1:
                self.write_unseen(
                    "data that was written through one of several NumPy arrays in the same memory"
                )
            elif value is not None:
                self._write(output, Constant(value, None))

    def write_unseen(self, description: str) -> None:
        """Record a write of unknown values. Values that are read from the memory later cannot be computed."""
        self._write(Unknown(description), Unknown(description))

    def _write(self, *args: Any) -> None:
        after = () if self._last_write is None else (self._last_write,)
        self._last_write = Operation(_copy, args, {}, after)


class TensorRecord:
    """The record of a fake tensor: which operator output the tensor is, and the record of its memory.

    A tensor and its `detach()` or `.data` share one record.
    """

    __slots__ = ("output", "storage")

    def __init__(self, output: Output | Unknown, storage: StorageRecord | None = None) -> None:
        self.output = output
        self.storage = storage or StorageRecord()

    def writes(self) -> tuple[Operation, ...]:
        """Return a tuple with the last write into the memory, or an empty tuple if there was none."""
        last = self.storage.last_write
        return () if last is None else (last,)

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorRecord:
        # `copy.deepcopy` of a fake tensor clones it and copies its attributes, including this one.
        clone = Operation(torch.ops.aten.clone.default, (self.output,), {}, self.writes())
        copied = TensorRecord(Output(clone, 0))
        copied.storage.edits = copy.deepcopy(self.storage.edits, memo)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return (_forgotten, ())  # Histories are not passed to other processes.


def _forgotten() -> TensorRecord:
    return TensorRecord(Unknown("a tensor that was unpickled"))


def history_of(records: Iterable[TensorRecord]) -> list[Operation]:
    """Return the operators that compute the current values of the tensors, in execution order."""
    last: list[Operation] = []
    for record in records:
        last.extend(record.writes())
        if isinstance(record.output, Output):
            last.append(record.output.operation)
    return history_up_to(last)


def history_up_to(operations: Iterable[Operation]) -> list[Operation]:
    """Return the operators and all operators that must run before them, in execution order."""
    found: dict[int, Operation] = {}
    pending = list(operations)
    while pending:
        operation = pending.pop()
        if operation.number not in found:
            found[operation.number] = operation
            pending.extend(operation.needs())
    return [found[number] for number in sorted(found)]


def leaves(value: Any) -> Iterator[Any]:
    """Yield every item of nested lists, tuples and dicts."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def _shown(value: Any) -> str:
    match value:
        case Output():
            return f"%{value.operation.number}" + (f"[{value.index}]" if value.index else "")
        case Constant():
            return f"<real {tuple(value.tensor.shape)}>"
        case Unknown():
            return f"<{value.description}>"
        case list() | tuple():
            return f"[{', '.join(map(_shown, value))}]"
        case _:
            return str(value)
