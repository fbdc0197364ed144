"""Measure memory in eager mode by running a model's code on fake tensors: one call, or two training steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import torch

from fakexport._torch.costs.operator_memory import tensors_in
from fakexport._torch.costs.training_record import (
    TrainingMemory,
    TrainingOperator,
    TrainingRecord,
    TrainingTracker,
    optimizer_is_foreach,
)
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.emulation.fake import FakeModel
from fakexport.error import FakexportError
from fakexport.exporting.program import is_user_code, plain_name
from fakexport.planning.memory.liveness import Liveness, autocast_on
from fakexport.planning.memory.storage import NamedStep, Storage
from fakexport.planning.memory.temporaries import temporaries
from fakexport.rules.diagnostics import Span

OptimizerName: TypeAlias = Literal["adamw", "adam", "sgd"]

_STEPS = 2
"""The first step creates the optimizer's state, so the second step needs more memory."""

OPTIMIZERS: Mapping[OptimizerName, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}


class Untrainable(FakexportError, ValueError):
    """A training step cannot change any parameter of the model. The text is one line."""


@one_at_a_time
def training_liveness(
    built: FakeModel,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    optimizer: OptimizerName = "adamw",
    autocast: torch.dtype | None = None,
) -> Liveness:
    """Return the memory of two training steps (forward pass, backward pass and optimizer step).

    Gradients are set to None at the start of a step. Only the loss is kept after the forward pass. The
    caller's autocast and grad mode do not apply to the model.

    Args:
        built: A fake model in training mode, inside the `emulate` block of its devices. Its parameters have
            no gradients afterwards.
        optimizer: One of torch's optimizers, with its defaults.
        autocast: Dtype of a `torch.autocast` around the forward pass, or None.
    Raises:
        Untrainable: No parameter requires a gradient, or the loss does not depend on one.
        Exception: An exception of the model.
    """
    module = built.module
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not trained:
        raise Untrainable("no parameter requires a gradient, so there is nothing to train")
    held = [tensor for tensor in tensors_in((list(args), dict(kwargs))) if tensor.device.type != "meta"]
    tracker = TrainingTracker(module, held, temporaries, is_user_code)
    devices = {tensor.device.type for tensor in (*trained, *held)}
    with built.mode, torch.inference_mode(False), torch.enable_grad(), autocast_on(devices, None):
        own = OPTIMIZERS[optimizer](trained, foreach=optimizer_is_foreach(trained))
        with tracker.record():
            for _ in range(_STEPS):
                own.zero_grad(set_to_none=True)
                with autocast_on(devices, autocast):
                    loss = loss_of(module(*args, **kwargs))
                # torch clears this cache only at the end of the outermost autocast region.
                torch.clear_autocast_cache()
                if not loss.requires_grad:
                    raise Untrainable("the loss does not depend on any parameter that requires a gradient")
                loss.backward()
                del loss
                tracker.note_gradients()
                own.step()
        own.zero_grad(set_to_none=True)
    return _liveness(tracker.finished())


@one_at_a_time
def eager_liveness(built: FakeModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Liveness:
    """Return the memory of one eager call without autograd, including tensors that Python frames keep alive.

    The caller's autocast does not apply to the model. Call this inside the `emulate` block of the model's
    devices.
    """
    held = tensors_in((list(args), dict(kwargs)))
    tracker = TrainingTracker(built.module, held, temporaries, is_user_code)
    devices = {tensor.device.type for tensor in (*built.module.parameters(), *held)}
    with built.mode, torch.inference_mode(False), torch.no_grad(), autocast_on(devices, None):
        with tracker.record():
            output = built.module(*args, **kwargs)
        del output
    return _liveness(tracker.finished())


def loss_of(output: Any) -> torch.Tensor:
    """Return the loss that a model returns, a scalar or an entry `loss`, or else the sum of mean squares.

    Raises:
        Untrainable: The output has no loss, and no floating-point tensor that requires a gradient.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss.mean() if loss.dim() else loss
    found = [tensor for tensor in _outputs(output) if tensor.requires_grad and tensor.is_floating_point()]
    if not found:
        raise Untrainable("the model returns no floating-point tensor that depends on its parameters")
    if len(found) == 1 and found[0].dim() == 0:
        return found[0]
    first, *others = (tensor.square().mean() for tensor in found)
    for other in others:
        first = first + other.to(first.device)
    return first


def _outputs(output: Any) -> list[torch.Tensor]:
    values = list(output.values()) if isinstance(output, Mapping) else output
    return tensors_in(values)


def _liveness(record: TrainingRecord) -> Liveness:
    places = [_place(operator) for operator in record.operators]
    return Liveness(
        storages=tuple(_storage(memory, places) for memory in record.memory),
        held=record.held,
        events=record.events,
        steps=tuple(places),
        unmodeled=tuple((index, places[index].operator) for index in record.unknown),
    )


def _place(operator: TrainingOperator) -> NamedStep:
    span = None
    if operator.file:
        span = Span(operator.file, operator.line, function=operator.function, origin="stack_trace")
    return NamedStep(operator.phase, operator.operator, operator.module_path, span)


def _storage(memory: TrainingMemory, places: list[NamedStep]) -> Storage:
    place = None if memory.operator < 0 else places[memory.operator]
    if place is not None and memory.owner:
        place = NamedStep(place.name, memory.purpose, memory.owner)
    return Storage(
        name=memory.owner or (memory.purpose if place is None else place.name),
        kind=memory.purpose,
        device=memory.device,
        bytes=memory.bytes,
        shape=memory.shape,
        dtype="" if memory.dtype is None else plain_name(memory.dtype),
        operator="" if place is None else place.operator,
        visit=place,
        names=(memory.owner,) if memory.owner else (),
    )
