"""What eager mode holds, found by running a model's code on fakes: a call, or two steps of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from fakexport._torch.operator_memory import tensors_in
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport._torch.training_record import (
    TrainingMemory,
    TrainingOperator,
    TrainingRecord,
    TrainingTracker,
    optimizer_is_foreach,
)
from fakexport.diagnostics import Span
from fakexport.error import FakexportError
from fakexport.fake import Built
from fakexport.memory.liveness import Liveness, autocast_on
from fakexport.memory.storage import Storage
from fakexport.memory.temporaries import temporaries
from fakexport.program import is_user_code, plain_name

OptimizerName: TypeAlias = Literal["adamw", "adam", "sgd"]

_STEPS = 2
"""The state of an optimizer is there from its first step on, so that the second needs more."""

OPTIMIZERS: Mapping[OptimizerName, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
}


class Untrainable(FakexportError, ValueError):
    """A model has nothing that a training step could change. One line."""


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """What took memory in a training step.

    Args:
        name: The phase: `forward`, `backward` or `optimizer`.
        operator: `aten.mm.default`; of a gradient or an optimizer's state, `gradient of` or `state of` it.
        module_path: The module; of a gradient or a state, the name of the parameter.
        span: The user's line.
    """

    name: str
    operator: str
    module_path: str
    span: Span | None = None


@one_at_a_time
def training_liveness(
    built: Built,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    optimizer: OptimizerName = "adamw",
    autocast: torch.dtype | None = None,
) -> Liveness:
    """Return what training holds: two steps, each of a forward and a backward pass and the optimizer's step.

    Gradients are set to None at the start of a step, and nothing but the loss outlives the forward pass. The
    caller's autocast and grad mode are not the model's.

    Args:
        built: A model of fakes in the mode in which it is trained, in the `emulate` block of its devices. Its
            parameters have no gradients afterwards.
        args, kwargs: Fakes at the sizes that are asked for.
        optimizer: One of torch's, with its defaults.
        autocast: Dtype of a `torch.autocast` around the forward pass; None: there is none.
    Raises:
        Untrainable: no parameter needs a gradient, or the loss depends on none.
        Exception: what the model raises.
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
                torch.clear_autocast_cache()  # As at the end of the outermost region, which this is not.
                if not loss.requires_grad:
                    raise Untrainable("the loss does not depend on a parameter that requires a gradient")
                loss.backward()
                del loss
                tracker.note_gradients()
                own.step()
        own.zero_grad(set_to_none=True)
    return _liveness(tracker.finished())


@one_at_a_time
def eager_liveness(built: Built, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Liveness:
    """Return what one call holds in eager mode, without autograd: what Python frames keep alive counts.

    The caller's autocast is not the model's.

    Args:
        built: A model of fakes, in the `emulate` block of its devices.
        args, kwargs: Fakes at the sizes that are asked for.
    Raises:
        Exception: what the model raises.
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
    """Return what is minimized: the loss that a model returns, or else the mean square of its outputs.

    Args:
        output: What the model returned. A scalar is its loss, and so is what is called `loss`.
    Raises:
        Untrainable: it is neither, and has no floating-point tensors.
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


def _place(operator: TrainingOperator) -> TrainingPlace:
    span = None
    if operator.file:
        span = Span(operator.file, operator.line, function=operator.function, origin="stack_trace")
    return TrainingPlace(operator.phase, operator.operator, operator.module_path, span)


def _storage(memory: TrainingMemory, places: list[TrainingPlace]) -> Storage:
    place = None if memory.operator < 0 else places[memory.operator]
    if place is not None and memory.owner:
        place = TrainingPlace(place.name, memory.purpose, memory.owner)
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
