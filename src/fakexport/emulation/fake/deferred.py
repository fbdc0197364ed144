"""Deferred initialization: build a model without data now, and materialize it later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import (
    FakeTensorMode,
    active_fake_mode,
    is_fake_tensor,
    new_fake_mode,
)
from fakexport._torch.emulation.wrapper_subclasses import inner_tensors
from fakexport._torch.tracing.dispatch_observer import observe
from fakexport.emulation.devices import Topology, emulated_topology
from fakexport.emulation.history import Output, note_edit, record_of, recording
from fakexport.error import InvalidValue

from .module_tensors import held_tensors

P = ParamSpec("P")
T = TypeVar("T")


def deferred_init(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `fn` in fake mode, and record how each fake tensor is created.

    `materialize_module` and `materialize_tensor` replay the record. The results equal those of calling
    `fn(*args, **kwargs)` eagerly with the same seed, bit for bit, no matter which tensors are materialized
    and in which order. The random generators end in the same state as after the eager call.

    Tensors of several calls can be combined: `deferred_init(lambda: nn.Sequential(a, b))`. Later changes must
    also be made inside a call: `deferred_init(model.half)`.

    Args:
        fn: Returns a module or a tensor, or a container of them.
        args, kwargs: Arguments of `fn`. Real tensors among them are referenced, not copied, until the replay.
    Returns:
        The result of `fn`.
    Raises:
        DataReadError: `fn` reads a value that cannot be computed.
        Exception: any error of `fn`.
    Warns:
        RuntimeWarning: finding the final state of the generator would require drawing more than 134 million
            numbers, so they were not drawn. This can happen for a truncated normal distribution with bounds
            near its mean. The next `deferred_init` still draws the correct numbers, but numbers that are
            drawn outside of `deferred_init` before then differ from those in eager mode.
    Source: torchdistx `deferred_init`; pytorch issues 93947, 96161.

    Example:
        >>> from fakexport.emulation.fake import materialize_module
        >>> model = deferred_init(nn.Linear, 3, 2)
        >>> is_deferred(model)
        True
        >>> materialize_module(model)
        >>> is_deferred(model)
        False
    """
    mode = active_fake_mode() or _deferred_mode()
    with mode, recording(mode, is_eager=True):
        return fn(*args, **kwargs)


def is_deferred(obj: torch.Tensor | nn.Module) -> bool:
    """Return whether a tensor, or any tensor of a module, is fake and was created by a recorded operator.

    Args:
        obj: A tensor or a module. A module's tensors are those that `materialize_module` would materialize.
    Raises:
        ValueError: `obj` is neither a tensor nor a module.
    Source: torchdistx `is_deferred`.

    Example:
        >>> is_deferred(deferred_init(nn.Linear, 4, 2)), is_deferred(nn.Linear(4, 2))
        (True, False)
    """
    if not isinstance(obj, torch.Tensor | nn.Module):
        raise InvalidValue(f"is_deferred expects a tensor or a module, got {type(obj).__name__}")
    return any(is_fake_tensor(t) and isinstance(record_of(t).output, Output) for t in _tensors_of(obj))


def _tensors_of(value: object) -> Iterator[torch.Tensor]:
    """Yield the plain tensors in a value. A wrapper subclass is replaced by its inner tensors."""
    if isinstance(value, torch.Tensor):
        yield from (inner for _, inner in inner_tensors(value))
    elif isinstance(value, nn.Module):
        for held in held_tensors(value):
            yield from _tensors_of(held.tensor)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_of(item)


class _Modes(threading.local):
    """The fake modes of this thread, one per topology, so that tensors of several calls can be combined."""

    def __init__(self) -> None:
        self.by_topology: dict[Topology | None, FakeTensorMode] = {}


_modes = _Modes()


def _deferred_mode() -> FakeTensorMode:
    topology = emulated_topology()
    mode = _modes.by_topology.get(topology)
    if mode is None:
        mode = _modes.by_topology[topology] = new_fake_mode()
        observe(mode, note_edit)
    return mode
