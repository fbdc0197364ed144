"""Materialize fake tensors: compute their values by replaying their records."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import (
    FakeTensor,
    active_fake_mode,
    hand_on_hooks,
    is_fake_tensor,
    own_attributes,
)
from fakexport._torch.emulation.parameter_classes import own_class, real_parameter
from fakexport._torch.emulation.wrapper_subclasses import inner_tensors, is_wrapper
from fakexport._torch.operators.real_execution import real_execution
from fakexport.emulation.history import (
    DataReadError,
    Operation,
    Output,
    TensorRecord,
    edit_of,
    record_of,
    replay,
    why_unreplayable,
)
from fakexport.error import FakexportError, first_line

from .module_tensors import Held, held_tensors
from .subclasses import changed_inside

Index = slice | int | tuple[slice | int, ...]
"""The index of the part of a tensor to keep, which is `tensor[index]`."""

_REAL = "_fakexport_real"


class MaterializeError(FakexportError, RuntimeError):
    """A fake tensor cannot be materialized. No tensor of the module was changed.

    Args:
        name: The tensor's name in the module, or `tensor`.
        reason: The reason, as one sentence.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be materialized: {reason}")
        self.name = name
        self.reason = reason


def materialize_tensor(tensor: torch.Tensor, *, device: str | torch.device | None = None) -> torch.Tensor:
    """Return the real tensor for a fake tensor that was created in `deferred_init` or `fake_mode`.

    Calls with the same fake tensor return the same real tensor, and fake tensors that share memory result in
    real tensors that share memory. The result has the class, attributes and `requires_grad` of the fake
    tensor, and is a leaf of the autograd graph.

    Args:
        tensor: A fake tensor. A real tensor is returned unchanged.
        device: Device of the result. Default: the fake tensor's device. The values are computed on the CPU.
    Raises:
        MaterializeError: the tensor has no record, the record lacks a later change or cannot be replayed, the
            device does not exist on this machine, or a fake mode is active.
    Source: torchdistx `materialize_tensor`.

    Example:
        >>> layer = deferred_init(nn.LayerNorm, 3)
        >>> materialize_tensor(layer.weight).tolist()
        [1.0, 1.0, 1.0]
    """
    target = None if device is None else torch.device(device)
    _check(tensor, "tensor", target)
    return _real(tensor, "tensor", target)


def materialize_module(
    module: nn.Module,
    buffers_only: bool = False,
    check_fn: Callable[[nn.Module], bool] | None = None,
    device: str | torch.device | None = None,
    *,
    shard_fn: Callable[[str, torch.Tensor], Index | None] | None = None,
) -> None:
    """Replace the fake tensors of a module and its submodules with real ones.

    This includes parameters, buffers, and tensors that are plain attributes or items of lists, tuples and
    dicts in attributes. Real tensors are not changed. Records that are no longer needed are freed. If an
    error is raised, no tensor is replaced.

    Args:
        module: A module created in `deferred_init` or `fake_mode`, or a submodule.
        buffers_only: Do not materialize parameters.
        check_fn: Called with each module, including the root. Returns whether to materialize the tensors of
            that module. Its result does not affect submodules, for which it is called separately.
        device: Device of the results. Default: the devices of the fake tensors. The values are computed on
            the CPU.
        shard_fn: Called with the full name and the fake tensor. Returns the index `i` of the part to keep,
            `tensor[i]`, or None to keep the whole tensor. Peak memory is the largest whole tensor plus the
            kept parts.
    Raises:
        MaterializeError: as for `materialize_tensor`; or two tensors share memory and are sharded
            differently.
        Exception: any error of `check_fn` or `shard_fn`; no tensor was changed.
    Source: torchdistx `materialize_module`, which has the first three arguments.

    Example:
        >>> from fakexport.emulation.fake import deferred_init
        >>> model = deferred_init(nn.Linear, 4, 8)
        >>> materialize_module(model, shard_fn=lambda name, tensor: slice(0, 2))
        >>> model.weight.shape
        torch.Size([2, 4])
    """
    target = None if device is None else torch.device(device)
    wanted = [
        held
        for held in held_tensors(module, check_fn)
        if is_fake_tensor(held.tensor) and not (buffers_only and held.is_parameter)
    ]
    cuts = _cuts(wanted, shard_fn)
    for held in wanted:
        _check(held.tensor, held.path, target)
    done: list[Held] = []
    try:
        for held in sorted(wanted, key=_when_made):
            cut = cuts.get(id(held.tensor))
            held.put(_real(held.tensor, held.path, target) if cut is None else cut.take(target))
            done.append(held)
    except BaseException:
        for held in reversed(done):
            held.put(held.tensor)
        raise
    finally:
        for cut in cuts.values():
            cut.part = None


def _check(fake: torch.Tensor, name: str, device: torch.device | None) -> None:
    """Raise an error if it is known without a replay that the fake tensor cannot be materialized."""
    if is_wrapper(fake):
        for path, inner in inner_tensors(fake):
            _check(inner, ".".join((name, *path)), device)
        return
    if not isinstance(fake, FakeTensor):
        return
    if active_fake_mode() is not None:
        raise MaterializeError(
            name, "a fake mode is active, in which all new tensors are fake; exit it first"
        )
    if (edit := edit_of(fake)) is not None:
        raise MaterializeError(
            name, f"it was {edit} while nothing was recorded; make the change inside deferred_init"
        )
    if (reason := why_unreplayable(record_of(fake))) is not None:
        raise MaterializeError(name, reason)
    target = device or fake.device
    try:
        with real_execution():
            torch.empty(0, device=target)
    except (RuntimeError, AssertionError) as error:
        raise MaterializeError(
            name, f"this machine has no {target} ({first_line(error)}); pass a different device"
        ) from error


def _real(fake: torch.Tensor, name: str, device: torch.device | None) -> torch.Tensor:
    """Return the real tensor for a fake one.

    A wrapper subclass is only recreated if one of its real inner tensors changed since the last call.
    """
    if not is_wrapper(fake):
        return _plain_real(fake, name, device) if isinstance(fake, FakeTensor) else fake
    inner = [_real(tensor, name, device) for _, tensor in inner_tensors(fake)]
    known: tuple[list[torch.Tensor], torch.Tensor] | None = vars(fake).get(_REAL)
    if known is not None and all(map(operator.is_, known[0], inner)):
        return known[1]
    with real_execution():
        remaining = iter(inner)
        real = changed_inside(name, fake, lambda _: next(remaining))
    vars(real).pop(_REAL, None)
    vars(fake)[_REAL] = (inner, real)
    return real


def _plain_real(fake: FakeTensor, name: str, device: torch.device | None) -> torch.Tensor:
    target = device or fake.device
    record = record_of(fake)
    last_write = record.storage.last_write
    known: tuple[Operation | None, torch.device, torch.Tensor] | None = vars(fake).get(_REAL)
    if known is not None and known[0] is last_write and known[1] == target:
        return known[2]
    with real_execution():
        real = _dressed(fake, _data(fake, record, name, target))
    vars(fake)[_REAL] = (last_write, target, real)
    return real


def _data(fake: FakeTensor, record: TensorRecord, name: str, target: torch.device) -> torch.Tensor:
    """Return the values of a fake tensor on a device.

    If the fake tensor shares memory with another one that is already materialized, the result shares memory
    with that real tensor.
    """
    shared = record.storage.real
    if shared is not None and shared[1] is record.storage.last_write and _is_on(shared[0], target):
        return _view_of(shared[0], fake)
    value = _replayed(record, name)
    if value.shape != fake.shape or value.dtype != fake.dtype:
        reason = f"it is {_described(fake)} now, but was recorded as {_described(value)}"
        raise MaterializeError(name, f"{reason}; make the change inside deferred_init")
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        return value.to(target)  # Such a tensor cannot be recreated from its memory and strides.
    storage = value.untyped_storage()
    if target.type != "cpu":
        flat = torch.empty(0, dtype=torch.uint8).set_(storage)
        storage = flat.to(target).untyped_storage()
        value = _view_of(storage, value)
    record.storage.real = (storage, record.storage.last_write)
    return value


def _replayed(record: TensorRecord, name: str) -> torch.Tensor:
    try:
        (value,) = replay([record], limit_bytes=None)
    except DataReadError as error:
        raise MaterializeError(name, error.reason) from error
    return value


def _view_of(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    empty = torch.empty(0, dtype=like.dtype, device=storage.device)
    return empty.set_(storage, like.storage_offset(), like.shape, like.stride())


def _is_on(storage: torch.UntypedStorage, device: torch.device) -> bool:
    return storage.device.type == device.type and device.index in (None, storage.device.index)


def _dressed(fake: FakeTensor, value: torch.Tensor) -> torch.Tensor:
    """Return the values with the class, attributes, autograd flags and hooks of the fake tensor."""
    cls = own_class(fake)
    requires_grad = fake.requires_grad and fake.is_leaf
    if cls is torch.Tensor:
        real = value.requires_grad_(requires_grad)
    else:
        real = real_parameter(cls, value, requires_grad)
    for name, item in own_attributes(fake).items():
        setattr(real, name, item)
    hand_on_hooks(fake, real)
    return real


class _Cut:
    """The part to keep of one sharded fake tensor. A tied tensor has one part for all of its names."""

    def __init__(self, held: Held, index: Index) -> None:
        self.fake = held.tensor
        self.name = held.path
        self.index = index
        self.part: torch.Tensor | None = None

    def take(self, device: torch.device | None) -> torch.Tensor:
        """Return the materialized part. It is a copy, so that the whole tensor can be freed."""
        assert isinstance(self.fake, FakeTensor)
        target = device or self.fake.device
        if self.part is None:
            whole = _replayed(record_of(self.fake), self.name)
            with real_execution():
                part = whole[self.index].to(target, copy=True, memory_format=torch.contiguous_format)
                self.part = _dressed(self.fake, part)
        return self.part


def _cuts(
    wanted: Iterable[Held], shard_fn: Callable[[str, torch.Tensor], Index | None] | None
) -> dict[int, _Cut]:
    """Return the part to keep of each sharded fake tensor, by the tensor's id."""
    if shard_fn is None:
        return {}
    asked: dict[int, tuple[str, Index | None]] = {}
    memory: dict[int, tuple[str, int]] = {}
    cuts: dict[int, _Cut] = {}
    for held in wanted:
        index = shard_fn(held.path, held.tensor)
        if is_wrapper(held.tensor):
            if index is not None:
                raise MaterializeError(held.path, f"a {type(held.tensor).__name__} cannot be sharded")
            continue
        first, index_of_first = asked.setdefault(id(held.tensor), (held.path, index))
        if index_of_first != index:
            raise MaterializeError(
                held.path, f"it is the same tensor as {first}, which shard_fn shards differently"
            )
        other, other_id = memory.setdefault(id(record_of(held.tensor).storage), (held.path, id(held.tensor)))
        if other_id != id(held.tensor) and (index is not None or other_id in cuts):
            raise MaterializeError(
                held.path, f"it shares memory with {other}: shard_fn must return None for both"
            )
        if index is not None and id(held.tensor) not in cuts:
            cuts[id(held.tensor)] = _Cut(held, index)
    return cuts


def _when_made(held: Held) -> int:
    """Return the number of the last operator that wrote the values.

    Materializing in this order avoids drawing the same random numbers twice.
    """
    return max(_plain_when_made(tensor) for _, tensor in inner_tensors(held.tensor))


def _plain_when_made(tensor: torch.Tensor) -> int:
    record = record_of(tensor)
    last = record.storage.last_write
    if last is not None:
        return last.number
    return record.output.operation.number if isinstance(record.output, Output) else -1


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
