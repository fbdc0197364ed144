"""Moving tensors over module boundaries where a model is spread over several devices.

What accelerate's `dispatch_model` does with hooks: the inputs of a module are brought to its device. Under
a trace each move becomes one node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .module_tensors import slots
from .placement import Placement


class MovedTensors(dict[tuple[int, int, torch.device], tuple[torch.Tensor, torch.Tensor]]):
    """Each tensor that was moved in a run, with its copy, by identity, version and the copy's device.

    The hook of a module asks only for the tensors that the module takes.
    """


class Transfers:
    """The installed hooks. A context manager, or `remove()` them."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take the hooks off the module; a second call does nothing."""
        while self._handles:
            self._handles.pop().remove()

    def __enter__(self) -> Transfers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


def install_transfers(module: nn.Module, placement: Placement) -> Transfers:
    """Make each module of a placement bring its inputs to its own device, until the hooks are removed.

    A tensor that is there already is left alone, so a model that moves tensors itself keeps its own
    moves. A tensor that several modules of one device take (the cos and sin of 126 layers) is moved once
    per run; under `strict=True`, once per module. Tensors are found in nested tuples, lists, dicts and
    dataclasses. A model on one device gets no hooks.
    """
    points = dict(_points("", module, placement.tensor_devices)) if len(placement.devices) > 1 else {}
    moved = MovedTensors()

    def forget(*_: Any) -> None:
        if not torch.compiler.is_dynamo_compiling():
            moved.clear()

    handles = []
    if points:
        handles.append(module.register_forward_pre_hook(forget))
        handles.append(module.register_forward_hook(forget, always_call=True))
    for path, device in points.items():
        hook = _Bring(torch.device(device), moved)
        handles.append(module.get_submodule(path).register_forward_pre_hook(hook, with_kwargs=True))
    return Transfers(handles)


class _Bring:
    """A forward pre-hook that brings tensor arguments to one device."""

    def __init__(self, device: torch.device, moved: MovedTensors) -> None:
        self._device = device
        self._moved = moved  # Holds the originals too, so that no id is used twice in a run.

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(_mapped(arg, self._bring) for arg in args), {
            name: _mapped(arg, self._bring) for name, arg in kwargs.items()
        }

    def _bring(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self._device:
            return tensor
        if torch.compiler.is_dynamo_compiling():
            return tensor.to(self._device)  # A strict trace knows no identities: it moves once per module.
        key = (id(tensor), _version(tensor), self._device)
        if key not in self._moved:
            self._moved[key] = (tensor, tensor.to(self._device))
        return self._moved[key][1]


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `value` with the function applied to its tensors.

    Containers without a change come back as they are.
    """
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        items = [_mapped(item, function) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return _mapped_fields(value, function)
    return value


def _mapped_fields(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    names = value if isinstance(value, dict) else [field.name for field in dataclasses.fields(value)]
    fields = value if isinstance(value, dict) else {name: getattr(value, name) for name in names}
    items = {name: _mapped(item, function) for name, item in fields.items()}
    if all(items[name] is fields[name] for name in items):
        return value
    # Not `replace` for a dataclass: a transformers output is a dict as well, and has no item for None.
    make: Callable[..., Any] = type(value)
    return make(**items) if dataclasses.is_dataclass(value) else make(items)


def _points(path: str, part: nn.Module, tensor_devices: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the outermost modules that can be called and are as a whole on one device."""
    prefix = f"{path}." if path else ""
    devices = {tensor_devices[prefix + slot.path] for slot in slots(part)}
    if len(devices) == 1 and _is_callable(part):
        yield path, devices.pop()
    elif devices:
        for name, child in part.named_children():
            yield from _points(prefix + name, child, tensor_devices)


def _is_callable(part: nn.Module) -> bool:
    return type(part).forward is not nn.Module.forward
