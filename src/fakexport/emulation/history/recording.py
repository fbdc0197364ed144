"""Record how each fake tensor is created, and compute the values that code reads while a model is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fakexport._torch.emulation.fake_methods import fake_methods, storage_writes
from fakexport._torch.emulation.fake_tensors import NEEDS_VALUES, FakeTensor, FakeTensorMode, real_to_fake
from fakexport._torch.emulation.parameter_classes import (
    parameters_keep_their_class,
    wrappers_can_be_unwrapped,
)
from fakexport._torch.operators.operator_effects import Effects, argument_at, effects_of
from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.random.rng_consumption import Drawn, drawn_by, truncated_normal_as_one_step
from fakexport._torch.tracing.dispatch_observer import observed

from .masked_shapes import has_mask, selected
from .randomness import Draw, Draws, RandomOperation
from .records import Args, Kwargs, Operation, Output, Run, Shown, StorageRecord, TensorRecord, leaves
from .references import Inputs, has_record, is_of_other_library, owner_of, record_of, set_record
from .replay import Replay, resolve_if_cheap, resolve_origin
from .values import constant_value, hand_on_value

_RECORDING = "_fakexport_recording"
_clone = torch.ops.aten.clone.default
_detach = torch.ops.aten.detach.default


class Recording:
    """Records the histories of the fake tensors that are created in a block.

    A recording can still be used after the block. It does not reference the tensors or their histories. Each
    tensor owns its history, and both are freed together.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.is_paused = False
        self._draws = Draws()
        self._replay = Replay()

    def constant_value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the real value of a tensor created in the block. See `values.constant_value`."""
        return constant_value(tensor)

    def close(self, is_eager: bool = False) -> None:
        """Free the real tensors that were cached for later reads, and restore the random generators.

        Args:
            is_eager: Set the generators to their state after eager construction, instead of their state
                before the block.
        """
        self._replay = Replay()
        self._draws.finish(resolve_if_cheap if is_eager else None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Enter a context in which nothing is recorded, and fake mode itself handles reads of values."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    # The mode calls this for each operator.
    def __call__(self, run: Run, operator: Any, args: Args, kwargs: Kwargs) -> Any:
        effects = effects_of(operator)
        if self.is_paused or torch.compiler.is_exporting():
            return run()
        if effects.returns_tensors:
            return self._record(run, operator, args, kwargs, effects)
        return self._answer(operator, args, kwargs) if effects.reads_values else run()

    def _record(self, run: Run, operator: Any, args: Args, kwargs: Kwargs, effects: Effects) -> Any:
        if effects.is_identity and isinstance(args[0], FakeTensor):
            result = run()
            if isinstance(result, FakeTensor):
                set_record(result, record_of(args[0]))
            return result
        if effects.changes_geometry or effects.moves_storage:
            _separate(args[0])
        inputs = Inputs(args, kwargs)
        if inputs.has_real and _stays_real(effects, inputs, args, kwargs):
            return self._answer(operator, args, kwargs)
        result = self._result(run, operator, args, kwargs, effects)
        if result is not NotImplemented:
            self._note(operator, inputs, effects, result, args, kwargs)
        return result

    def _result(self, run: Run, operator: Any, args: Args, kwargs: Kwargs, effects: Effects) -> Any:
        """Return the operator's results as fake tensors. If they depend on values, run it on real tensors."""
        if has_mask(operator, args):
            with self.paused():
                return selected(self.mode, operator, args, self._value)
        if not effects.reads_values:
            try:
                # Some of torch's fake kernels reject a generator, and none of them uses it.
                return run(generator=None) if kwargs.get("generator") is not None else run()
            except NEEDS_VALUES:
                pass
        return self._fake_answer(operator, args, kwargs)

    def _note(
        self, operator: Any, inputs: Inputs, effects: Effects, result: Any, args: Any, kwargs: Any
    ) -> None:
        called = _clone if effects.is_lift else operator
        after = inputs.writes_before(_overwritten(effects, args))
        dtype = torch.get_default_dtype()
        operation: Operation
        if effects.is_random:
            draw = self._draw(operator, result, args, kwargs)
            operation = RandomOperation(called, inputs.args, inputs.kwargs, after, dtype, draw=draw)
        else:
            operation = Operation(called, inputs.args, inputs.kwargs, after, dtype)
        storage = _aliased_storage(effects, args, kwargs)
        if effects.is_lift and is_of_other_library(args[0]):
            storage = StorageRecord()
            storage.shown.append(Shown(Output(operation, 0), args[0]))
        for index, tensor in enumerate((result,) if isinstance(result, FakeTensor) else leaves(result)):
            if isinstance(tensor, FakeTensor) and not has_record(tensor):
                set_record(tensor, TensorRecord(Output(operation, index), storage))
        if effects.moves_storage:
            _note_new_storage(args[0], args[1] if len(args) > 1 else None, operation)
        else:
            for record in _note_writes(operation, effects, args, kwargs):
                self._show(record)

    def _show(self, record: TensorRecord) -> None:
        """Update the NumPy arrays that share memory with a tensor after an operator wrote into the tensor."""
        for shown in record.storage.shown:
            (value,) = self._replay.values([TensorRecord(shown.output, record.storage)])
            with real_execution():
                shown.write(value)

    def _draw(self, operator: Any, result: Any, args: Args, kwargs: Kwargs) -> Draw:
        drawn = drawn_by(operator, args, kwargs, result)
        filled = result if isinstance(result, torch.Tensor) else next(leaves(result))
        return self._draws.next(drawn, kwargs.get("generator"), filled.numel())

    def _answer(self, operator: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run the operator on the real values of its fake inputs."""
        if effects_of(operator).is_random:
            self._draw_for_real(kwargs.get("generator") or torch.default_generator)
        records = [record_of(t) for t in leaves((args, dict(kwargs))) if isinstance(t, FakeTensor)]
        values = iter(self._replay.values(records))

        def real(value: Any) -> Any:
            match value:
                case FakeTensor():
                    return next(values)
                case list() | tuple():
                    return type(value)(map(real, value))
                case torch.device():
                    return torch.device("cpu")
                case _:
                    return value

        with real_execution():
            return operator(*map(real, args), **{name: real(item) for name, item in kwargs.items()})

    def _value(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._replay.values([record_of(tensor)])[0] if isinstance(tensor, FakeTensor) else tensor

    def _fake_answer(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Run the operator on real values, and return its results as fake tensors on the inputs' device."""
        device = _device_of(args, kwargs)
        generator = kwargs.get("generator") or torch.default_generator

        def fake(value: Any) -> Any:
            match value:
                case torch.Tensor():
                    return real_to_fake(self.mode, value, device)
                case list() | tuple():
                    return type(value)(map(fake, value))
                case _:
                    return value

        place = generator.get_state()
        result = self._answer(operator, args, kwargs)
        generator.set_state(place)  # Only the shapes are needed; the draw itself is recorded afterwards.
        return fake(result)

    def _draw_for_real(self, generator: torch.Generator) -> None:
        """Set a generator to its state in eager mode, because a draw happens now instead of in a replay."""
        position = self._draws.position(generator)
        resolve_origin(position.origin)
        generator.set_state(position.state())

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the value for `.numpy()` and `.tolist()`, which then shares memory with the fake tensor."""
        record = record_of(tensor)
        for known in record.storage.shown:
            if known.output is record.output:
                return known.real
        (value,) = self._replay.values([record])
        with real_execution():
            real = value.clone()
            if isinstance(record.output, Output):
                record.storage.shown.append(Shown(record.output, real))
        return real

    def assigned(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Record `tensor.data = other`: both share memory from now on."""
        if not self.is_paused:
            hand_on_value(other, tensor)

    def storage_written(self, storage: torch.UntypedStorage) -> bool:
        """Record that Python writes into a storage without an operator.

        Returns:
            False if the storage has no record.
        """
        record = owner_of(storage)
        if record is not None and not self.is_paused:
            record.write_unseen("data that was written to a storage directly, without an operator")
        return record is not None

    def filled(
        self, function: Callable[..., Any], tensor: torch.Tensor, args: tuple[Any, ...], drawn: Drawn | None
    ) -> bool:
        """Record that `function` fills `tensor` with random numbers.

        Args:
            drawn: How many random numbers are drawn, or None if this depends on the values that are drawn.
        Returns:
            False if nothing is being recorded.
        """
        if self.is_paused or torch.compiler.is_exporting():
            return False
        record = record_of(tensor)
        after = () if _covers_its_memory(tensor) else record.writes()
        *values, generator = args
        draw = self._draws.next(drawn, generator, tensor.numel())
        dtype = torch.get_default_dtype()
        record.storage.last_write = RandomOperation(
            function, (record.output, *values, None), {}, after, dtype, draw=draw
        )
        self._show(record)
        return True


@contextmanager
def recording(
    mode: FakeTensorMode, is_eager: bool = False, recorder: Recording | None = None
) -> Iterator[Recording]:
    """Enter a context that records the tensors of an active fake mode, so that code can read their values.

    Within a block that already records the same mode, that recording continues.

    Args:
        is_eager: Set the random generators to their state after eager construction, if it can be computed
            cheaply. By default, restore the generators as if nothing was drawn.
    """
    active: Recording | None = vars(mode).get(_RECORDING)
    if active is not None:
        yield active
        return
    recorder = vars(mode)[_RECORDING] = recorder or Recording(mode)
    try:
        with (
            fake_methods(mode, recorder.read, recorder.assigned),
            storage_writes(recorder.storage_written),
            truncated_normal_as_one_step(mode, recorder.filled),
            parameters_keep_their_class(mode),
            wrappers_can_be_unwrapped(mode),
            observed(mode, recorder),
        ):
            yield recorder
    finally:
        del vars(mode)[_RECORDING]
        recorder.close(is_eager)


def _stays_real(effects: Effects, inputs: Inputs, args: Args, kwargs: Kwargs) -> bool:
    """Return whether a call must use real tensors: it writes into a real tensor, or returns a view of one."""
    written = (tensor for place in effects.writes for tensor in leaves(argument_at(place, args, kwargs)))
    if any(isinstance(t, torch.Tensor) and not isinstance(t, FakeTensor) for t in written):
        return True
    return effects.aliased is not None and not inputs.records and not effects.is_lift


def _aliased_storage(effects: Effects, args: Args, kwargs: Kwargs) -> StorageRecord | None:
    """Return the memory that the outputs share with an argument, or None if they do not share memory."""
    if effects.aliased is None:
        return None
    source = argument_at(effects.aliased, args, kwargs)
    return record_of(source).storage if isinstance(source, FakeTensor) else None


def _separate(tensor: Any) -> None:
    """Give a tensor its own record before its sizes change. Other tensors may share the old record."""
    if isinstance(tensor, FakeTensor):
        record = record_of(tensor)
        own = Operation(_detach, (record.output,), {}, record.writes())
        set_record(tensor, TensorRecord(Output(own, 0), record.storage))


def _overwritten(effects: Effects, args: Args) -> TensorRecord | None:
    """Return the record of the first argument if the operator overwrites all of its values, else None."""
    if not effects.overwrites or not isinstance(args[0], FakeTensor):
        return None
    record = record_of(args[0])
    return record if record.storage.last_write is not None and _covers_its_memory(args[0]) else None


def _covers_its_memory(tensor: torch.Tensor) -> bool:
    """Return whether overwriting the whole tensor replaces all previous writes into its memory."""
    is_whole = tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()
    return is_whole and not record_of(tensor).storage.has_changed_geometry


def _note_writes(operation: Operation, effects: Effects, args: Args, kwargs: Kwargs) -> list[TensorRecord]:
    """Record the writes of an operator, and return the records of the written memory."""
    written = [leaf for place in effects.writes for leaf in leaves(argument_at(place, args, kwargs))]
    records = [record_of(tensor) for tensor in written if isinstance(tensor, FakeTensor)]
    for record in records:
        record.storage.last_write = operation
        record.storage.has_changed_geometry |= effects.changes_geometry
    return records


def _note_new_storage(tensor: FakeTensor, source: Any, operation: Operation) -> None:
    """Record `tensor.set_(source)`: the tensor uses different memory from now on."""
    if isinstance(source, FakeTensor):
        storage = record_of(source).storage
    else:
        storage = owner_of(source) or StorageRecord()
    storage.last_write = operation
    storage.has_changed_geometry = True
    set_record(tensor, TensorRecord(record_of(tensor).output, storage))


def _device_of(args: Any, kwargs: Any) -> torch.device:
    tensors = [t for t in leaves((args, dict(kwargs))) if isinstance(t, torch.Tensor)]
    placed = next((t for t in tensors if t.device.type != "cpu"), tensors[0] if tensors else None)
    return placed.device if placed is not None else torch.device("cpu")
