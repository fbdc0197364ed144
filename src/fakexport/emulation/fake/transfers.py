"""Install hooks that move the inputs of each module to the device of the module.

accelerate's `dispatch_model` does the same. In a trace, each move is one node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from .placement import Placement


class MovedTensors(dict[tuple[int, int, torch.device], tuple[torch.Tensor, torch.Tensor]]):
    """The tensors that were moved during a run, each with its copy on the new device.

    The key is the id and version of the original tensor, and the device of the copy.
    """


class Transfers:
    """The installed hooks. Use it as a context manager, or call `remove()`."""

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Remove the hooks from the module; a second call has no effect."""
        while self._handles:
            self._handles.pop().remove()

    def __enter__(self) -> Transfers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()


def install_transfers(module: nn.Module, placement: Placement) -> Transfers:
    """Move the inputs of each placed module to the module's device, until the hooks are removed.

    Tensors that are already on the device are not moved, so a model that moves tensors itself is unaffected.
    A tensor that several modules on one device use (such as the cos and sin of 126 layers) is moved once per
    run, or once per module with `strict=True`. Tensors are also found in nested tuples, lists, dicts and
    dataclasses. If the whole model is on one device, no hooks are installed.
    """
    devices = devices_below(placement.tensor_devices) if len(placement.devices) > 1 else {}
    points = dict(_points("", module, devices))
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
    """A forward pre-hook that moves tensor arguments to one device."""

    def __init__(self, device: torch.device, moved: MovedTensors) -> None:
        self._device = device
        self._moved = moved  # Keeps the originals alive, so that no id is reused within a run.

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(_mapped(arg, self._bring) for arg in args), {
            name: _mapped(arg, self._bring) for name, arg in kwargs.items()
        }

    def _bring(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self._device:
            return tensor
        if torch.compiler.is_dynamo_compiling():
            # A strict trace does not track identities, so each module moves the tensor again.
            return tensor.to(self._device)
        key = (id(tensor), _version(tensor), self._device)
        if key not in self._moved:
            self._moved[key] = (tensor, tensor.to(self._device))
        return self._moved[key][1]


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `value` with the function applied to the tensors in it.

    A container in which nothing changes is returned itself, not as a copy.
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
    # Not `dataclasses.replace`: outputs of transformers are also dicts, which have no items for None fields.
    make: Callable[..., Any] = type(value)
    return make(**items) if dataclasses.is_dataclass(value) else make(items)


def devices_below(tensor_devices: Mapping[str, str]) -> dict[str, set[str]]:
    """Return, by module path, the devices of the tensors of the module and its submodules."""
    found: dict[str, set[str]] = {}
    for path, device in tensor_devices.items():
        while path:
            path = path.rpartition(".")[0]
            found.setdefault(path, set()).add(device)
    return found


def _points(path: str, part: nn.Module, devices: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yield the paths and devices of the outermost callable modules that are entirely on one device."""
    own = devices.get(path, set())
    if len(own) == 1 and _is_callable(part):
        yield path, next(iter(own))
    elif own:
        for name, child in part.named_children():
            yield from _points(f"{path}.{name}" if path else name, child, devices)


def _is_callable(part: nn.Module) -> bool:
    return type(part).forward is not nn.Module.forward
