"""Find all tensors of a module and their names in one walk, and replace them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Slot:
    """The location of a registered parameter or buffer: a module, and the tensor's name in that module."""

    path: str  # Full name of the tensor: `model.layers.0.weight`. As in torch, components can be empty.
    owner: nn.Module  # The module in which the tensor is registered.
    name: str  # The tensor's name in that module.
    is_parameter: bool  # Whether the tensor is registered as a parameter.

    @property
    def tensor(self) -> torch.Tensor:
        """The current tensor."""
        held = self.owner._parameters if self.is_parameter else self.owner._buffers
        tensor = held[self.name]
        assert tensor is not None
        return tensor


def slots(module: nn.Module) -> Iterator[Slot]:
    """Yield every slot with a tensor, in the order of `named_modules`.

    Tied tensors are yielded once per name.
    """
    for module_path, owner in module.named_modules(remove_duplicate=False):
        yield from tensor_slots(module_path, owner)


def tensor_slots(module_path: str, owner: nn.Module) -> Iterator[Slot]:
    """Yield the slots of a module itself, without those of its children."""
    prefix = f"{module_path}." if module_path else ""
    for is_parameter, held in ((True, owner._parameters), (False, owner._buffers)):
        for name, tensor in held.items():
            if tensor is not None:
                yield Slot(prefix + name, owner, name, is_parameter)


@dataclass(frozen=True)
class Held:
    """A tensor of a module, registered or not, and its location in the module."""

    path: str  # Full name: `model.layers.0.weight`, `model.masks[1]`.
    tensor: torch.Tensor
    is_parameter: bool  # Whether the tensor is registered as a parameter.
    put: Callable[[torch.Tensor], None]  # Function that stores a different tensor at this location.


@dataclass(frozen=True)
class Inventory:
    """All modules and tensors of a module, found in one walk.

    Args:
        parts: The path of each module and the module, in the order of `named_modules`. A module with several
            paths is listed once for each path.
        slots: Every slot with a tensor. A slot remains valid if its tensor is replaced. Tied tensors have one
            slot per name.
        held: Every tensor at the time of the walk, as `held_tensors` yields them.
    """

    module: nn.Module  # The root.
    parts: tuple[tuple[str, nn.Module], ...]
    slots: tuple[Slot, ...]
    held: tuple[Held, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Inventory:
        """Find all modules and tensors of a module."""
        parts = tuple(module.named_modules(remove_duplicate=False))
        own = tuple(slot for path, owner in parts for slot in tensor_slots(path, owner))
        return cls(module, parts, own, tuple(_held_in_parts(_distinct(parts), None)))

    @property
    def paths(self) -> dict[str, None]:
        """The paths of all modules, then the names of all parameters and buffers."""
        return dict.fromkeys((*(path for path, _ in self.parts), *(slot.path for slot in self.slots)))

    @property
    def tensor_devices(self) -> dict[str, str]:
        """The current device of each parameter and buffer by full name."""
        return {slot.path: str(slot.tensor.device) for slot in self.slots}

    def plain_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the full name of each unregistered tensor attribute of a module, and the tensor."""
        for module_path, owner in _distinct(self.parts):
            for name, value in vars(owner).items():
                if isinstance(value, torch.Tensor):
                    yield (f"{module_path}.{name}" if module_path else name), value


def _distinct(parts: Iterable[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Return each distinct module with its first path."""
    first: dict[int, tuple[str, nn.Module]] = {}
    for path, part in parts:
        first.setdefault(id(part), (path, part))
    return list(first.values())


def held_tensors(module: nn.Module, check_fn: Callable[[nn.Module], bool] | None = None) -> Iterator[Held]:
    """Yield every tensor of a module: parameters, buffers, attributes, and items of containers in attributes.

    Unregistered modules in lists, tuples and dicts are also searched. Modules that `check_fn` rejects are
    skipped.
    """
    yield from _held_in_parts(list(module.named_modules()), check_fn)


def _held_in_parts(
    parts: Sequence[tuple[str, nn.Module]],
    check_fn: Callable[[nn.Module], bool] | None,
    seen: set[int] | None = None,
) -> Iterator[Held]:
    """Yield the tensors of the given modules, and of unregistered modules in them that are not in `seen`."""
    seen = set() if seen is None else seen
    seen.update(id(part) for _, part in parts)
    for module_path, owner in parts:
        if check_fn is not None and not check_fn(owner):
            continue
        prefix = f"{module_path}." if module_path else ""
        for is_parameter, held in ((True, owner._parameters), (False, owner._buffers)):
            yield from _held_in(held, prefix, is_parameter)
        attributes = {name: value for name, value in vars(owner).items() if name not in _REGISTRIES}
        for name, value in attributes.items():
            if not isinstance(value, nn.Module):
                yield from _held_at(prefix + name, value, _setter(vars(owner), name), False)
            for inner_path, inner in _unregistered(prefix + name, value, seen):
                yield from _held_in_parts(list(inner.named_modules(prefix=inner_path)), check_fn, seen)


def _unregistered(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """Yield those modules in nested lists, tuples and dicts that were not searched yet, with their paths."""
    match value:
        case nn.Module():
            if id(value) not in seen:
                yield path, value
        case dict():
            for key, item in value.items():
                yield from _unregistered(f"{path}[{key!r}]", item, seen)
        case list() | tuple():
            for index, item in enumerate(value):
                yield from _unregistered(f"{path}[{index}]", item, seen)


_REGISTRIES = frozenset(vars(nn.Module()))


def _held_in(registry: dict[str, Any], prefix: str, is_parameter: bool) -> Iterator[Held]:
    for name, value in registry.items():
        yield from _held_at(prefix + name, value, _setter(registry, name), is_parameter)


def _held_at(path: str, value: Any, put: Callable[[Any], None], is_parameter: bool) -> Iterator[Held]:
    if isinstance(value, torch.Tensor):
        yield Held(path, value, is_parameter, put)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _held_at(f"{path}[{key!r}]", item, _setter(value, key), False)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _held_at(f"{path}[{index}]", item, _setter(value, index), False)
    elif type(value) is tuple:
        items = list(value)

        def put_item(index: int, tensor: torch.Tensor) -> None:
            items[index] = tensor
            put(tuple(items))

        for index, item in enumerate(value):
            yield from _held_at(f"{path}[{index}]", item, functools.partial(put_item, index), False)


def _setter(container: Any, key: Any) -> Callable[[Any], None]:
    return functools.partial(operator.setitem, container, key)
