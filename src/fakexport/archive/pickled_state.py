"""Read the state of a C++ object from the pickle that torch wrote, without unpickling it."""

from __future__ import annotations

import io
import pickletools
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fakexport.files.container import STORED, ArchiveError, Limits, read_entries
from fakexport.files.documents import DocumentError

MOST_VALUES = 1_000_000
"""Limit on the number of values in a state. A value that is referenced twice counts twice."""
MOST_TENSORS = 10_000
"""Limit on the number of tensors. Each takes about a kilobyte in addition to its storage."""

_DEEPEST = 64
_DIMENSIONS = 64
_MARK = object()
"""Marks a position on the pickle's stack."""
_PROTOCOL, _STOP = b"\x80\x02", b"."
_ARGUMENTS = {each.code.encode("latin-1"): each.arg for each in pickletools.opcodes}
_OF_TENSORS = re.compile(
    r"data\.pkl|data/[0-9]+|byteorder|version|\.(format_version|storage_alignment|data/serialization_id)"
)
_CLASS_MODULE = "__torch__.torch.classes."
_LISTS = frozenset(f"build_{kind}list" for kind in ("int", "double", "bool", "tensor"))


@dataclass(frozen=True)
class Storage:
    """A storage of tensors: torch's class, such as `FloatStorage`, and the name of its record."""

    dtype: str
    record: str


@dataclass(frozen=True)
class StoredView:
    """A tensor in a state, as a view of a storage. Offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool


@dataclass(frozen=True)
class PickledState:
    """The class of a pickled object, such as `signal_ops::Polynomial`, and its state.

    Values (None, bool, int, float, complex, str, `StoredView`) may be nested in tuples, lists and dicts.
    """

    class_name: str
    state: Any


@dataclass(frozen=True)
class _Global:
    module: str
    name: str


@dataclass(frozen=True)
class _Stateless:
    """An object that the pickle created but whose state it has not set yet."""

    class_name: str


def read_pickled_state(pickled: bytes) -> PickledState:
    """Return the class and the state of an object from its `data.pkl`.

    Torch's pickler (`torch/csrc/jit/serialization/pickler.cpp`) uses few pickle opcodes, and this function
    accepts only these. It never calls functions that the pickle names, and uses no more memory than the size
    of the pickle.

    Raises:
        DocumentError: The pickle is damaged, or contains something that an object's state never contains.
    """
    try:
        found = _Reading().result(pickled)
    except DocumentError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise DocumentError(f"is not a valid pickle: {type(error).__name__}") from error
    if not isinstance(found, PickledState):
        raise DocumentError("is not a pickled object of a C++ class")
    _refuse_too_many(found.state)
    return found


def nested_records(content: bytes, limits: Limits) -> dict[str, memoryview]:
    """Return views of the records in the nested archive, by name without the leading folder."""
    view = memoryview(content)

    def read_at(offset: int, length: int) -> bytes:
        if offset + length > len(content):
            raise ArchiveError("", "is truncated")
        return content[offset : offset + length]

    found = {}
    for entry in read_entries("", read_at, len(content), limits):
        record = view[entry.data : entry.data + entry.packed]
        if entry.method != STORED or zlib.crc32(record) != entry.crc:
            raise ArchiveError("", f"is damaged in {entry.name!r}")
        found[entry.name.partition("/")[2]] = record
    return found


def is_plain(inputs: bytes) -> bool:
    """Return whether a record of example inputs, as `torch.save` writes them, contains nothing but data.

    Tensors, numbers and texts in tuples, lists and dicts are data. The record may be empty.
    """
    try:
        records = nested_records(inputs, Limits()) if inputs else {}
        if inputs:
            _refuse_too_many(_Reading().result(bytes(records["data.pkl"])))
    except (ArchiveError, DocumentError, ValueError, IndexError, KeyError, TypeError, OverflowError):
        return False
    return all(map(_OF_TENSORS.fullmatch, records))


class _Reading:
    """Interpret a pickle with a stack and a memo."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._tensors = 0
        push = self._stack.append
        self._steps: dict[bytes, Callable[[Any], None]] = {
            b"c": self._global,
            b"q": self._remember,
            b"r": self._remember,
            b"h": self._recall,
            b"j": self._recall,
            b"(": lambda _: push(_MARK),
            b"N": lambda _: push(None),
            b"\x88": lambda _: push(True),
            b"\x89": lambda _: push(False),
            b")": lambda _: push(()),
            b"]": lambda _: push([]),
            b"}": lambda _: push({}),
            b"t": lambda _: push(tuple(self._above_mark())),
            b"\x85": lambda _: push(tuple(self._top(1))),
            b"\x86": lambda _: push(tuple(self._top(2))),
            b"\x87": lambda _: push(tuple(self._top(3))),
            b"a": self._append,
            b"e": self._appends,
            b"u": self._set_items,
            b"\x81": self._new_object,
            b"R": self._reduce,
            b"b": self._build,
            b"Q": self._storage,
            **dict.fromkeys((b"J", b"K", b"M", b"\x8a", b"G"), push),
            b"X": self._text,
        }

    def result(self, pickled: bytes) -> Any:
        """Return the value that remains on the stack at the end. It must be the only one."""
        if not pickled.startswith(_PROTOCOL):
            raise DocumentError("is not a pickle of protocol 2")
        file = io.BytesIO(pickled)
        file.seek(len(_PROTOCOL))
        while (code := file.read(1)) != _STOP:
            step = self._steps.get(code)
            if step is None:
                raise DocumentError(f"has the opcode {code!r}, which the state of an object never contains")
            form = _ARGUMENTS[code]
            step(None if form is None else form.reader(file))
        if file.read(1) or len(self._stack) != 1:
            raise DocumentError("has data after its end")
        return self._stack[0]

    def _global(self, names: str) -> None:
        module, _, name = names.partition(" ")
        self._stack.append(_Global(module, name))

    def _text(self, text: str) -> None:
        text.encode()  # Raises for a lone surrogate, which pickletools accepts.
        self._stack.append(text)

    def _remember(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def _recall(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def _top(self, count: int) -> list[Any]:
        values = self._stack[-count:]
        if len(values) != count or any(value is _MARK for value in values):
            raise DocumentError("uses a value that does not exist")
        del self._stack[-count:]
        return values

    def _above_mark(self) -> list[Any]:
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            if place == 0:
                raise DocumentError("uses a value that does not exist")
            place -= 1
        values = self._stack[place + 1 :]
        del self._stack[place:]
        return values

    def _append(self, _: Any) -> None:
        (value,) = self._top(1)
        self._container(list).append(value)

    def _appends(self, _: Any) -> None:
        values = self._above_mark()
        self._container(list).extend(values)

    def _set_items(self, _: Any) -> None:
        values = self._above_mark()
        if len(values) % 2 or not all(isinstance(key, (str, int, float)) for key in values[::2]):
            raise DocumentError("has a dictionary with a key that is not a number or string")
        self._container(dict).update(zip(values[::2], values[1::2], strict=True))

    def _container(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise DocumentError(f"adds to a value that is not a {kind.__name__}")
        return self._stack[-1]

    def _new_object(self, _: Any) -> None:
        made, arguments = self._top(2)
        if not isinstance(made, _Global) or not made.module.startswith(_CLASS_MODULE) or arguments != ():
            raise DocumentError("instantiates something that is not a C++ class")
        namespace = made.module.removeprefix(_CLASS_MODULE)
        if not all(part.isidentifier() for part in (*namespace.split("."), made.name)):
            raise DocumentError("has an invalid class name")
        self._stack.append(_Stateless("::".join((*namespace.split("."), made.name))))

    def _build(self, _: Any) -> None:
        made, state = self._top(2)
        if not isinstance(made, _Stateless):
            raise DocumentError("sets the state of something that is not an object")
        self._stack.append(PickledState(made.class_name, state))

    def _reduce(self, _: Any) -> None:
        called, arguments = self._top(2)
        if not isinstance(called, _Global) or not isinstance(arguments, tuple):
            raise DocumentError("calls a value that is not a function")
        made = _called(called, arguments)
        self._tensors += isinstance(made, StoredView)
        if self._tensors > MOST_TENSORS:
            raise DocumentError(f"has more than {MOST_TENSORS:,} tensors")
        self._stack.append(made)

    def _storage(self, _: Any) -> None:
        ((kind, of, record, device, _count),) = self._top(1)
        if kind != "storage" or not isinstance(of, _Global) or of.module != "torch":
            raise DocumentError("refers to a value that is not a tensor storage")
        if device != "cpu":
            raise DocumentError(f"has a tensor on {str(device)[:40]!r}; only CPU tensors are supported")
        if not isinstance(record, str) or not record.isascii() or not record.isdigit():
            raise DocumentError("has a storage whose name is not a number")
        self._stack.append(Storage(of.name, record))


def _called(called: _Global, arguments: tuple[Any, ...]) -> Any:
    """Return the result of a call in the pickle. Only functions that torch's pickler uses are accepted."""
    match called.module, called.name, arguments:
        case "torch.jit._pickle", name, (list() as values,) if name in _LISTS:
            return values
        # `restore_type_tag` adds the value's type for `__setstate__`; the value stays the same.
        case "torch.jit._pickle", "restore_type_tag", (value, str()):
            return value
        case "builtins", "complex", (float() as real, float() as imaginary):
            return complex(real, imaginary)
        case "collections", "OrderedDict", ():
            return {}
        case "torch._utils", "_rebuild_tensor_v2", (Storage() as storage, offset, shape, stride, grad, {}):
            return _view(storage, offset, shape, stride, grad)
    name = f"{called.module[:80]}.{called.name[:80]}"
    raise DocumentError(f"calls {name!r}, which the state of an object never needs")


def _view(storage: Storage, offset: Any, shape: Any, stride: Any, requires_grad: Any) -> StoredView:
    # Torch writes tuples. A list would be copied for each tensor that refers to the list.
    if not (isinstance(shape, tuple) and isinstance(stride, tuple) and len(shape) == len(stride)):
        raise DocumentError("has a tensor with invalid sizes")
    if len(shape) > _DIMENSIONS:
        raise DocumentError(f"has a tensor with more than {_DIMENSIONS} dimensions")
    numbers = (offset, *shape, *stride)
    if not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
        raise DocumentError("has a tensor with invalid sizes")
    return StoredView(storage, offset, shape, stride, requires_grad is True)


def _refuse_too_many(state: Any) -> None:
    """Raise if a state has too many values. Each reference counts, because a list may even contain itself."""
    left = MOST_VALUES
    pending: list[Iterator[Any]] = [iter((state,))]
    while pending:
        value = next(pending[-1], pending)
        if value is pending:
            pending.pop()
            continue
        left -= 1
        if left < 0:
            raise DocumentError(f"has more than {MOST_VALUES:,} values")
        if isinstance(value, (list, tuple)):
            pending.append(iter(value))
        elif isinstance(value, dict):
            pending.append(iter([*value, *value.values()]))
        elif value is _MARK or isinstance(value, (_Global, _Stateless, PickledState, Storage)):
            raise DocumentError("has a value that the state of an object never contains")
        if len(pending) > _DEEPEST:
            raise DocumentError(f"is nested more than {_DEEPEST} levels deep")
