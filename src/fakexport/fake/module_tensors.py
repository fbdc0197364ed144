"""The tensors that a module holds, by name, and putting others in their places."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Slot:
    """One place of a module that holds a parameter or a buffer.

    Args:
        path: Full name of the tensor: `model.layers.0.weight`. Empty parts as torch has them.
        owner: The module that holds it.
        name: Its name there.
        is_parameter: Whether it is registered as a parameter.
    """

    path: str
    owner: nn.Module
    name: str
    is_parameter: bool

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor that is there now."""
        held = self.owner._parameters if self.is_parameter else self.owner._buffers
        tensor = held[self.name]
        assert tensor is not None
        return tensor


def slots(module: nn.Module) -> Iterator[Slot]:
    """Yield every slot that holds a tensor, in the order of `named_modules`.

    Tied tensors come once per name.
    """
    for module_path, owner in module.named_modules(remove_duplicate=False):
        yield from tensor_slots(module_path, owner)


def tensor_slots(module_path: str, owner: nn.Module) -> Iterator[Slot]:
    """Yield the slots of one module, without those of its children."""
    prefix = f"{module_path}." if module_path else ""
    for is_parameter, held in ((True, owner._parameters), (False, owner._buffers)):
        for name, tensor in held.items():
            if tensor is not None:
                yield Slot(prefix + name, owner, name, is_parameter)


def plain_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Return tensors that are attributes of a module without being registered, by full name."""
    for module_path, owner in module.named_modules():
        for name, value in vars(owner).items():
            if isinstance(value, torch.Tensor):
                yield (f"{module_path}.{name}" if module_path else name), value


@dataclass(frozen=True)
class Held:
    """A tensor at one place of a module, registered or not.

    Args:
        path: Full name: `model.layers.0.weight`, `model.masks[1]`.
        tensor: The tensor that was found there.
        is_parameter: Whether it is registered as a parameter.
        put: Puts another tensor there.
    """

    path: str
    tensor: torch.Tensor
    is_parameter: bool
    put: Callable[[torch.Tensor], None]


def held_tensors(module: nn.Module, check_fn: Callable[[nn.Module], bool] | None = None) -> Iterator[Held]:
    """Yield every place that holds a tensor: parameters, buffers, attributes, and containers among these.

    A module that is in a list, tuple or dict without being registered is looked into as well.

    Args:
        module: The root.
        check_fn: Says which modules are meant. Default: all.
    """
    yield from _held_below(module, "", check_fn, {id(part) for part in module.modules()})


def _held_below(
    module: nn.Module, path: str, check_fn: Callable[[nn.Module], bool] | None, seen: set[int]
) -> Iterator[Held]:
    """Yield what a module and its registered submodules hold.

    `seen` are the modules that someone looks into.
    """
    for module_path, owner in module.named_modules(prefix=path):
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
                yield from _held_below(inner, inner_path, check_fn, seen)


def _unregistered(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules in nested lists, tuples and dicts that no one looked into yet."""
    match value:
        case nn.Module():
            if id(value) not in seen:
                seen.update(id(part) for part in value.modules())
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
