"""How a fake tensor was made: the recorded operations, and what each needs of those before it.

The records form a graph that points strictly backwards in time: an operation holds the outputs that it
took and, for each, the last operation that wrote into that memory. So an operation lives exactly as long
as a tensor, or a later operation, needs it. Nothing here holds a fake tensor.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from fakexport._torch.real_execution import real_execution


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each element of a strided tensor, in one more dimension."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.unsqueeze(-1).view(torch.uint8)


Run = Callable[..., Any]
Args = Sequence[Any]
Kwargs = Mapping[str, Any]
"""A call of an operator, as an observer gets it: what runs it, and its arguments."""
_sequence = itertools.count()
_copy = torch.ops.aten.copy_.default


@dataclass(slots=True, eq=False, repr=False)
class Operation:
    """One operator call of the past.

    Args:
        operator: The overload, or a function that takes the arguments.
        args, kwargs: Its arguments, with `Output`, `Constant` and `Unknown` instead of tensors.
        after: The operations that wrote into the memory of the arguments until then.
        default_dtype: The default dtype of that moment.
    """

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    after: tuple[Operation, ...] = ()
    default_dtype: torch.dtype = torch.float32
    number: int = field(init=False, default_factory=lambda: next(_sequence))

    @property
    def name(self) -> str:
        """`aten.add.Tensor`, or the name of the function."""
        return self.operator.__name__ if isinstance(self.operator, FunctionType) else str(self.operator)

    def __repr__(self) -> str:
        shown = [*map(_shown, self.args), *(f"{k}={_shown(v)}" for k, v in self.kwargs.items())]
        return f"%{self.number} = {self.name}({', '.join(shown)})"

    def references(self) -> Iterator[Output]:
        """Return the outputs among the arguments."""
        return (value for value in leaves((self.args, self.kwargs)) if isinstance(value, Output))

    def needs(self) -> Iterator[Operation]:
        """Yield the operations that have to run before this one."""
        yield from self.after
        for reference in self.references():
            yield reference.operation


@dataclass(slots=True, eq=False, repr=False)
class Output:
    """The tensor at one place among the outputs of an operation."""

    operation: Operation
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A real tensor that an operation took.

    Args:
        tensor: The tensor itself; a copy where torch does not own the memory, or NumPy shares it.
        version: Its version counter then, or None for what an array of NumPy held that shares memory with a
            recorded tensor.
        is_of_numpy: Whether it came from memory that torch does not own.
    """

    tensor: torch.Tensor
    version: int | None
    is_of_numpy: bool = False


class Shown:
    """An array of NumPy that shares memory with a recorded tensor. Python writes there without an operator.

    Args:
        output: The tensor.
        real: A real tensor in the memory of the array. Never written to by a replay.
    """

    __slots__ = ("_known", "output", "real")

    def __init__(self, output: Output, real: torch.Tensor) -> None:
        self.output = output
        self.real = real
        self._known = real.clone()

    def change(self) -> torch.Tensor | None:
        """Return what the array holds if that has changed since the last call, as a copy."""
        if torch.equal(bits(self.real), bits(self._known)):
            return None
        self._known = self.real.clone()
        return self._known

    def write(self, value: torch.Tensor) -> None:
        """Write into the array what an operator has written into the tensor."""
        self.real.copy_(value)
        self._known = self.real.clone()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A tensor that an operation took and whose history no one recorded."""

    description: str


class StorageRecord:
    """The memory that a tensor and its views share: the last operation that wrote into it.

    `edits` says what changed it while no one recorded. `copy.deepcopy` of tensors that share memory gives
    them one such list: outside of a block the copies of fake tensors do not share memory, and real ones do.
    `real` is the memory that stands for it since a tensor that looks at it was materialized, and the last
    write at that moment. `shown` are the arrays of NumPy in the same memory.
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
        """The last operation that wrote into it; what Python wrote through NumPy since becomes one first."""
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
                self.write_unseen("a write through one of several arrays of NumPy in the same memory")
            elif value is not None:
                self._write(output, Constant(value, None))

    def write_unseen(self, description: str) -> None:
        """Note a write of unknown values: what reads the memory from now on cannot be computed."""
        self._write(Unknown(description), Unknown(description))

    def _write(self, *args: Any) -> None:
        after = () if self._last_write is None else (self._last_write,)
        self._last_write = Operation(_copy, args, {}, after)


class TensorRecord:
    """What is remembered of a fake tensor: the output that it is, and the memory that it looks at.

    A tensor and what `detach()` or `.data` made of it have one record.
    """

    __slots__ = ("output", "storage")

    def __init__(self, output: Output | Unknown, storage: StorageRecord | None = None) -> None:
        self.output = output
        self.storage = storage or StorageRecord()

    def writes(self) -> tuple[Operation, ...]:
        """Return the last write into the memory, if there was one."""
        last = self.storage.last_write
        return () if last is None else (last,)

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorRecord:
        # `copy.deepcopy` of a fake tensor clones it and copies its attributes, this one among them.
        clone = Operation(torch.ops.aten.clone.default, (self.output,), {}, self.writes())
        copied = TensorRecord(Output(clone, 0))
        copied.storage.edits = copy.deepcopy(self.storage.edits, memo)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return (_forgotten, ())  # A history does not leave the process.


def _forgotten() -> TensorRecord:
    return TensorRecord(Unknown("a tensor that was unpickled"))


def history_of(records: Iterable[TensorRecord]) -> list[Operation]:
    """Return the operations that compute the present values of the tensors, in the order in
    which they ran.
    """
    last: list[Operation] = []
    for record in records:
        last.extend(record.writes())
        if isinstance(record.output, Output):
            last.append(record.output.operation)
    return history_up_to(last)


def history_up_to(operations: Iterable[Operation]) -> list[Operation]:
    """Return the operations and all that have to run before them, in the order in which they ran."""
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
