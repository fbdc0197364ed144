"""Deferred initialization: build a model without data now, and add its data later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from fakexport._torch.active_modes import active_fake_mode
from fakexport._torch.dispatch_observer import observe
from fakexport._torch.fake_tensors import FakeTensorMode, is_fake_tensor, new_fake_mode
from fakexport._torch.wrapper_subclasses import inner_tensors
from fakexport.devices import Topology, emulated_topology
from fakexport.error import InvalidValue
from fakexport.history import Output, note_edit, record_of, recording

from .module_tensors import held_tensors

P = ParamSpec("P")
T = TypeVar("T")


def deferred_init(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `fn` so that the tensors it creates are fake, and record how each was created.

    `materialize_module` and `materialize_tensor` replay the record. With the seed that torch has now, the
    result equals `fn(*args, **kwargs)` bit for bit, whatever is materialized and in any order. The random
    generators are left where the eager call leaves them.

    Tensors of several calls may be used together: `deferred_init(lambda: nn.Sequential(a, b))`. Make later
    changes inside of a call as well: `deferred_init(model.half)`.

    Args:
        fn: Returns a module or a tensor, or anything that contains some.
        args, kwargs: Passed to `fn`. Real tensors among them are kept by reference until the replay.
    Returns:
        What `fn` returns.
    Raises:
        UnreplayableRead: `fn` reads a value that cannot be computed.
        Exception: whatever `fn` raises.
    Warns:
        RuntimeWarning: where the generator is left depends on more than 134 million numbers (a truncated
            normal distribution with bounds near its mean), which were not drawn. A further `deferred_init`
            continues from the right place; real numbers that are drawn before differ from those of eager.
    Source: torchdistx `deferred_init`; pytorch issues 93947, 96161.

    Example:
        >>> from fakexport.fake import materialize_module
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
    """Return whether a tensor, or any tensor of a module, is fake and has a record that can be replayed.

    Args:
        obj: A tensor, or a module: all that `materialize_module` would materialize.
    Raises:
        ValueError: `obj` is neither.
    Source: torchdistx `is_deferred`.

    Example:
        >>> is_deferred(deferred_init(nn.Linear, 4, 2)), is_deferred(nn.Linear(4, 2))
        (True, False)
    """
    if not isinstance(obj, torch.Tensor | nn.Module):
        raise InvalidValue(f"is_deferred takes a tensor or a module, got {type(obj).__name__}")
    return any(is_fake_tensor(t) and isinstance(record_of(t).output, Output) for t in _tensors_of(obj))


def _tensors_of(value: object) -> Iterator[torch.Tensor]:
    """Yield the plain tensors of a value; of a wrapper, those inside of it."""
    if isinstance(value, torch.Tensor):
        yield from (inner for _, inner in inner_tensors(value))
    elif isinstance(value, nn.Module):
        for held in held_tensors(value):
            yield from _tensors_of(held.tensor)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_of(item)


class _Modes(threading.local):
    """The modes of deferred tensors on this thread: one per topology, so that several calls' tensors mix."""

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
