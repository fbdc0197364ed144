"""Rerun recorded operators with real tensors on the CPU."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from fakexport._torch.emulation.wrapper_subclasses import held_bytes
from fakexport._torch.operators.real_execution import real_execution
from fakexport.error import FakexportError, first_line
from fakexport.rules.diagnostics import Span

from .randomness import Origin, RandomOperation
from .records import Constant, Operation, Output, TensorRecord, Unknown, history_of, history_up_to, leaves

LARGEST_REPLAY_BYTES = 8 * 2**30
"""If a replay needs more real memory than this, the value is not computed."""

_KEPT_BYTES = 64 * 2**20
_TAIL = 8


class DataReadError(FakexportError, RuntimeError):
    """Code read a value that cannot be computed.

    Args:
        reason: The reason, as one sentence.
        history: The last operators of the tensor's history, as text, oldest first.
        operators: The distinct operators of the whole history, in order of first use.
        span: The line of the model that read the value, or None if no frame of the model is on the stack.
    """

    def __init__(
        self,
        reason: str,
        history: Sequence[str] = (),
        operators: Sequence[str] = (),
        span: Span | None = None,
    ) -> None:
        super().__init__(f"code read a value that cannot be computed: {reason}")
        self.reason = reason
        self.history = tuple(history)
        self.operators = tuple(operators)
        self.span = span


class Replay:
    """Replays histories, and caches real tensors so that the next replay does not start from the beginning.

    The cache is only kept while it is small. After a write into a tensor, the earlier value is not available.
    """

    def __init__(self, limit_bytes: int | None = LARGEST_REPLAY_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._forget()

    def values(self, records: Sequence[TensorRecord]) -> list[torch.Tensor]:
        """Return the current values of the tensors. Do not modify them: later calls may return them again.

        Raises:
            DataReadError: an input is unknown or was changed, an operator fails, or memory runs out.
        """
        history = history_of(records)
        is_done = False
        try:
            with real_execution():
                self._run(history, _uses_of(records))
                values = [self._value(record.output) for record in records]
            is_done = True
            return values
        except _Unreplayable as fault:
            raise _error(str(fault), history) from fault.__cause__
        finally:
            if not is_done or not self._can_go_on:
                self._forget()

    def _forget(self) -> None:
        self._outputs: dict[int, list[Any]] = {}
        self._last = -1
        self._bytes = 0
        self._can_go_on = True

    def run(self, operation: Operation) -> None:
        """Run an operator and its dependencies only to advance its random generator."""
        try:
            with real_execution():
                self._run(history_up_to([operation]), Counter())
        finally:
            self._forget()

    def _run(self, history: Sequence[Operation], wanted: Counter[int]) -> None:
        numbers = {operation.number for operation in history}
        todo = [operation for operation in history if operation.number not in self._outputs]
        if not self._outputs.keys() <= numbers or (todo and todo[0].number < self._last):
            self._forget()
            todo = list(history)
        uses = wanted + Counter(r.operation.number for operation in todo for r in operation.references())
        for operation in todo:
            outputs = self._outputs[operation.number] = _run(operation, self._value)
            self._last = operation.number
            self._bytes += sum(held_bytes(t) for t in outputs if isinstance(t, torch.Tensor))
            uses.subtract(reference.operation.number for reference in operation.references())
            if self._bytes > _KEPT_BYTES:
                self._drop_unused(uses)

    def _drop_unused(self, uses: Counter[int]) -> None:
        """Free tensors that no later operator uses. Recompute `_bytes`, which counted shared memory twice."""
        self._can_go_on = False
        self._outputs = {number: outputs for number, outputs in self._outputs.items() if uses[number] > 0}
        held = [t for outputs in self._outputs.values() for t in outputs if isinstance(t, torch.Tensor)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        if self._limit_bytes is not None and sum(storages.values()) > self._limit_bytes:
            raise _Unreplayable(f"computing it requires more than {self._limit_bytes >> 30} GiB of memory")
        self._bytes = sum(storages.values()) // 2  # Halved, so that not every step calls this method.

    def _value(self, reference: Any) -> Any:
        match reference:
            case Output():
                return self._outputs[reference.operation.number][reference.index]
            case Constant():
                self._can_go_on &= reference.version is not None
                return _unchanged(reference)
            case Unknown():
                raise _Unreplayable(f"it depends on {reference.description}")
            case torch.device():
                return torch.device("cpu")
            case list():
                return [self._value(item) for item in reference]
            case tuple():
                return tuple(self._value(item) for item in reference)
            case _:
                return reference


def replay(
    records: Sequence[TensorRecord], limit_bytes: int | None = LARGEST_REPLAY_BYTES
) -> list[torch.Tensor]:
    """Return the current values of recorded tensors, each computed from its history.

    If recorded tensors share memory, the results also do. The results are always on the CPU, regardless of
    the recorded devices, and are detached from autograd.

    Raises:
        DataReadError: an input is unknown or was changed, an operator fails, or memory runs out.
    """
    return Replay(limit_bytes).values(records)


def resolve_origin(origin: Origin) -> None:
    """Compute a generator state that is known only after earlier operators have run.

    Raises:
        DataReadError: one of these operators cannot run.
    """
    chain: list[Origin] = []
    while origin.state is None:
        chain.append(origin)
        operation = origin.operation
        assert operation is not None
        origin = operation.draw.start.origin
    for origin in reversed(chain):
        if origin.operation is not None:  # The run of an earlier operator may have included this one.
            Replay(limit_bytes=None).run(origin.operation)


_MOST_DRAWN = 1 << 27
"""Maximum number of elements to draw only to set the state of a generator. This takes one or two seconds."""


def resolve_if_cheap(origin: Origin) -> bool:
    """Compute a generator state if this requires few draws, and return whether it was computed.

    If it was not computed, warn.
    """
    elements = origin.elements_before()
    if elements <= _MOST_DRAWN:
        with suppress(DataReadError):
            resolve_origin(origin)
            return True
    warnings.warn(
        "the random generator is not in the state that it would have after eager construction: to reach "
        f"that state, it would have to draw {elements:,} numbers. Seed the generator before you draw from "
        "it; a later deferred_init call still continues from the right state",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def why_unreplayable(record: TensorRecord) -> str | None:
    """Return why the tensor's value cannot be computed, or None if no reason is known. No operator is run."""
    if isinstance(record.output, Unknown):
        return f"it is {record.output.description}"
    for operation in history_of([record]):
        for value in leaves((operation.args, operation.kwargs)):
            match value:
                case Unknown():
                    return f"it depends on {value.description}"
                case Constant() if value.version is not None and value.tensor._version != value.version:
                    return _changed(value)
    return None


class _Unreplayable(Exception):
    """An operator cannot be replayed. The caller converts this to a `DataReadError` with the history."""


def _uses_of(records: Sequence[TensorRecord]) -> Counter[int]:
    """Count how many of the records are outputs of each operator, by the operator's number."""
    return Counter(r.output.operation.number for r in records if isinstance(r.output, Output))


def _run(operation: Operation, value: Any) -> list[Any]:
    args = value(operation.args)
    kwargs = {name: value(item) for name, item in operation.kwargs.items()}
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
    draw = operation.draw if isinstance(operation, RandomOperation) else None
    if draw is not None:
        resolve_origin(draw.start.origin)

    def call() -> Any:
        return operation.operator(*args, **kwargs)

    try:
        with _default_dtype(operation.default_dtype):
            result = call() if draw is None else draw.run(call)
    except Exception as error:
        raise _Unreplayable(f"{operation.name} fails on the CPU: {first_line(error)}") from error
    return list(leaves(result))


def _unchanged(constant: Constant) -> torch.Tensor:
    if constant.version is not None and constant.tensor._version != constant.version:
        raise _Unreplayable(_changed(constant))
    return constant.tensor


def _changed(constant: Constant) -> str:
    shape = tuple(constant.tensor.shape)
    return f"it depends on a real tensor of shape {shape} that was modified in place afterwards"


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    if dtype is before:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _error(reason: str, history: Sequence[Operation]) -> DataReadError:
    operators = dict.fromkeys(operation.name for operation in history)
    return DataReadError(
        reason, history=[repr(o) for o in history[-_TAIL:]], operators=list(operators), span=reading_span()
    )


_OWN_CODE = (
    str(Path(torch.__file__).parent) + os.sep,
    str(Path(__file__).parents[2]) + os.sep,
    "<frozen",
    "<string>",
)


def reading_span() -> Span | None:
    """Return the source line of the innermost stack frame outside of torch and fakexport."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN_CODE):
            return Span(code.co_filename, frame.f_lineno, function=code.co_qualname, origin="traceback")
        frame = frame.f_back  # type: ignore[assignment]
    return None
