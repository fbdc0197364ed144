"""Find the sources of a fake tensor's value in its record, without computing the value."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from fakexport._torch.emulation.fake_tensors import FakeTensor
from fakexport._torch.operators.operator_effects import Effects, argument_at, effects_of
from fakexport._torch.operators.real_execution import real_execution

from .randomness import RandomOperation
from .records import Constant, Operation, Output, Unknown, bits, leaves
from .references import has_record, record_of

DependenceKind = Literal["memory", "parameter", "random", "unknown", "uninitialised"]

_copy = torch.ops.aten.copy_.default


@dataclass(frozen=True)
class Dependence:
    """A source of a tensor's value other than the model's code.

    Args:
        kind: `memory`: the tensor is a parameter or persistent buffer, or shares memory with one;
            `parameter`: it was computed from the values of a parameter; `random`: it depends on an unseeded
            draw; `unknown`: on a tensor without a recorded history; `uninitialised`: on uninitialized memory.
        operator: The operator that read the parameter's values, drew the numbers, or allocated the memory.
            None if there is no such operator.
    """

    kind: DependenceKind
    source: str  # The name of the weight, a description of the unknown tensor, or the name of the operator.
    operator: str | None = None


class Provenance:
    """Finds what the values of a model's tensors depend on, other than the model's code.

    Tensors that share memory have the same value: a tensor computed from `x` depends on the parameter
    `nn.Parameter(x)`, even if it was computed before the parameter was created. Shapes, dtypes and devices
    are not values: `zeros_like(weight)` depends on nothing. A tensor computed from a persistent buffer does
    not depend on it either, because the constructor computes with the buffer's initial values, before a
    checkpoint is loaded. A dependence is not found if it passes through a Python number
    (`weight.std().item()`) or through a conversion of the model's dtype.

    Args:
        parameters: Parameters of the model, by name. Tied parameters are reported by their first name.
        buffers: Persistent buffers of the model, by name.
        is_seed_enough: Whether to ignore random numbers that are drawn after `torch.manual_seed`, because
            code with a fixed seed always draws the same numbers.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor] | None = None,
        *,
        is_seed_enough: bool = True,
    ) -> None:
        self._is_seed_enough = is_seed_enough
        self._parameters = _memories(parameters)
        weights = {**parameters, **(buffers or {})}
        self._weights = self._parameters | _memories(weights)
        # This also finds tensors without a record: torch detaches parameters in lists.
        self._storages = {
            StorageWeakRef(t.untyped_storage()): name
            for name, t in reversed(weights.items())
            if t.layout is torch.strided
        }

    def dependence_of(self, tensor: torch.Tensor) -> Dependence | None:
        """Return what a tensor's value depends on, or None if it depends only on the model's code.

        If there are several dependences, a parameter takes precedence. If the result is None,
        `constant_value` may still be unable to compute the value on this machine.
        """
        if not isinstance(tensor, FakeTensor) or tensor.numel() == 0:
            return None
        record = record_of(tensor)
        shared = self._weights.get(_key(_root(record.output)))
        if shared is None and tensor.layout is torch.strided:
            shared = self._storages.get(StorageWeakRef(tensor.untyped_storage()))
        if shared is not None:
            return Dependence("memory", shared)
        search = _Search(self._parameters, is_seed_enough=self._is_seed_enough)
        return search.of(record.output, record.writes())

    def recipe_of(self, tensor: torch.Tensor) -> str:
        """Return a digest of the operators that compute a tensor; "" if the tensor has no record.

        Operators that compute a parameter are not included, because a checkpoint provides the parameter.
        """
        if not isinstance(tensor, FakeTensor) or not has_record(tensor):
            return ""
        record = record_of(tensor)
        recipe = _Recipe(self._parameters)
        text = recipe.text(record.output, record.writes())
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Recipe:
    """Converts the operators of a tensor to text. Operators are numbered in execution order."""

    def __init__(self, parameters: Mapping[Hashable, str]) -> None:
        self._parameters = parameters
        self._numbers: dict[int, int] = {}

    def text(self, output: Any, writes: Iterable[Operation]) -> str:
        operations = self._operations(output, writes)
        self._numbers = {operation.number: place for place, operation in enumerate(operations)}
        lines = [self._line(operation) for operation in operations]
        return "\n".join((*lines, self._shown(output)))

    def _operations(self, output: Any, writes: Iterable[Operation]) -> list[Operation]:
        found: dict[int, Operation] = {}
        pending = [*self._made_by([output]), *self._own(writes)]
        while pending:
            operation = pending.pop()
            if operation.number not in found:
                found[operation.number] = operation
                pending += [*self._made_by(operation.references()), *self._own(operation.after)]
        return [found[number] for number in sorted(found)]

    def _made_by(self, references: Iterable[Any]) -> Iterator[Operation]:
        for reference in references:
            if isinstance(reference, Output) and _key(reference) not in self._parameters:
                yield reference.operation

    def _own(self, writes: Iterable[Operation]) -> Iterator[Operation]:
        return (write for write in writes if not _written(write) <= self._parameters.keys())

    def _line(self, operation: Operation) -> str:
        shown = [*map(self._shown, operation.args)]
        shown += [f"{name}={self._shown(value)}" for name, value in operation.kwargs.items()]
        return f"{operation.name}({', '.join(shown)}) {operation.default_dtype}"

    def _shown(self, value: Any) -> str:
        match value:
            case Output() if (name := self._parameters.get(_key(value))) is not None:
                return name
            case Output():
                return f"%{self._numbers[value.operation.number]}[{value.index}]"
            case Constant():
                return _content(value.tensor)
            case Unknown():
                return value.description
            case list() | tuple():
                return f"[{', '.join(map(self._shown, value))}]"
            case torch.device():  # The values are the same on any device.
                return "device"
            case _:
                return repr(value)


def _content(tensor: torch.Tensor) -> str:
    with real_execution():
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return repr(tensor)
        digest = hashlib.sha256(bits(tensor).numpy().tobytes()).hexdigest()
        return f"{tensor.dtype}{list(tensor.shape)} {digest}"


class _Search:
    """Searches backwards from one tensor through all operators and tensors that were used to compute it."""

    def __init__(self, parameters: Mapping[Hashable, str], *, is_seed_enough: bool) -> None:
        self._parameters = parameters
        self._is_seed_enough = is_seed_enough
        self._pending: list[Operation] = []
        self._seen: set[int] = set()
        self._found: dict[DependenceKind, Dependence] = {}

    def of(self, reference: Any, after: Iterable[Operation]) -> Dependence | None:
        self._follow([reference], tuple(after), reader=None)
        while self._pending and "parameter" not in self._found:
            self._visit(self._pending.pop())
        order: tuple[DependenceKind, ...] = ("parameter", "random", "unknown", "uninitialised")
        return next((self._found[kind] for kind in order if kind in self._found), None)

    def _visit(self, operation: Operation) -> None:
        """Follow all tensors whose values the operator read."""
        if operation.number in self._seen:
            return
        self._seen.add(operation.number)
        if isinstance(operation, RandomOperation) and not (self._is_seed_enough and operation.draw.is_seeded):
            self._note("random", operation.name, operation)
        effects = effects_of(operation.operator)
        if effects.ignores_values:
            return
        self._follow(_read_references(operation, effects), operation.after, reader=operation)

    def _follow(
        self, references: Iterable[Any], after: tuple[Operation, ...], reader: Operation | None
    ) -> None:
        explained: set[int] = set()
        for reference in references:
            explained |= self._read(reference, after, reader)
        # After `set_`, a write may be recorded for a different tensor, which had this memory before.
        self._pending.extend(write for write in after if write.number not in explained)

    def _read(self, reference: Any, after: tuple[Operation, ...], reader: Operation | None) -> set[int]:
        """Visit the operators in `after` that wrote into the memory of a reference. Return their numbers."""
        root = _root(reference)
        key = _key(root)
        if (name := self._parameters.get(key)) is not None:
            self._note("parameter", name, reader)
        writes = [write for write in after if key in _written(write)]
        self._pending.extend(writes)
        if not writes:
            self._first_content(root, is_partial=reader is not None and key in _written(reader))
        return {write.number for write in writes}

    def _first_content(self, root: Any, *, is_partial: bool) -> None:
        """Visit the operator that allocated some memory, or record that its initial contents are unknown."""
        if isinstance(root, Unknown):
            self._note("unknown", root.description, None)
        elif isinstance(root, Output):
            made_by = root.operation
            self._pending.append(made_by)
            # If the first write covers only a part of the memory, the uninitialized part may or may not be
            # read.
            if not is_partial and _is_uninitialised(made_by):
                self._note("uninitialised", made_by.name, made_by)

    def _note(self, kind: DependenceKind, source: str, operation: Operation | None) -> None:
        self._found.setdefault(kind, Dependence(kind, source, operation.name if operation else None))


def _memories(tensors: Mapping[str, torch.Tensor]) -> dict[Hashable, str]:
    """Map the memory of each tensor to the tensor's name. Shared memory is mapped to the first name."""
    memories: dict[Hashable, str] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, FakeTensor) and has_record(tensor):
            record = record_of(tensor)
            for reference in (record.output, *_moved_to(record.storage.last_write)):
                memories.setdefault(_key(_root(reference)), name)
    return memories


def _moved_to(write: Operation | None) -> Iterator[Any]:
    """If the write is a `set_`, yield the tensor that provides the new memory."""
    if write is not None and effects_of(write.operator).moves_storage:
        yield from (argument for argument in write.args[1:2] if isinstance(argument, Output | Unknown))


def _root(reference: Any) -> Any:
    """Follow a chain of views back to the base tensor, and return the reference to it."""
    while isinstance(reference, Output):
        operation = reference.operation
        place = effects_of(operation.operator).aliased
        source = None if place is None else argument_at(place, operation.args, operation.kwargs)
        if not isinstance(source, Output | Unknown | Constant):
            break
        reference = source
    return reference


def _key(root: Any) -> Hashable:
    """Return a key that identifies the memory of a base tensor as long as the records exist."""
    if isinstance(root, Output):
        return (root.operation.number, root.index)
    return id(root.tensor if isinstance(root, Constant) else root)


def _written(operation: Operation) -> set[Hashable]:
    """Return the memories that the operator wrote into."""
    if isinstance(operation.operator, FunctionType):  # Recorded Python functions fill their first argument.
        written = [operation.args[0]]
    else:
        places = effects_of(operation.operator).writes
        written = [argument_at(place, operation.args, operation.kwargs) for place in places]
    return {_key(_root(item)) for item in leaves(written) if isinstance(item, Output | Unknown | Constant)}


def _read_references(operation: Operation, effects: Effects) -> list[Any]:
    """Return the references to tensors whose values the operator reads."""
    covers = effects.overwrites and _covers_its_memory(operation)
    read = (operation.args[1:] if covers else operation.args, operation.kwargs)
    return [value for value in leaves(read) if isinstance(value, Output | Unknown | Constant)]


def _covers_its_memory(operation: Operation) -> bool:
    """Return whether an operator overwrites the whole memory of its first argument, not only of a view.

    The operator is one that overwrites every element of its first argument.
    """
    first, *others = operation.args
    # A constant without a version is the contents of a NumPy array, which may be written into only in part.
    is_shared = operation.operator is _copy and isinstance(others[0], Constant) and others[0].version is None
    return isinstance(first, Output) and _root(first) is first and not is_shared


def _is_uninitialised(operation: Operation) -> bool:
    return effects_of(operation.operator).leaves_uninitialised and not any(
        isinstance(size, list | tuple) and 0 in size for size in operation.args
    )
