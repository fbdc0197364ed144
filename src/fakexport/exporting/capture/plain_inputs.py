"""Convert example inputs to tuples, lists and dicts, so that an archive loads without other classes.

A named tuple or a dataclass becomes a dict of its fields. During the trace, `forward` receives the original
class.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import FakeTensor, example_to_fake
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport.exporting.program import fields_of
from fakexport.models.sources import patched_forward

_CONTAINERS = (tuple, list, dict)
_NOT_INPUTS = ("torch", "fakexport")
"""Packages whose dataclasses, such as `Dim.AUTO`, never contain inputs."""


def prepared_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic: Any
) -> tuple[tuple[Any, ...], dict[str, Any], Any, AbstractContextManager[None]]:
    """Return positional inputs, keyword inputs and dynamic shapes for a trace, and a context for the trace.

    Every tensor occurs only once in the inputs, and all containers are plain.
    """
    example = own_inputs(module, args, kwargs)
    made_args, made_kwargs = plain_input(example)
    is_plain = made_args is example[0] and made_kwargs is example[1]
    restored = nullcontext() if is_plain else inputs_restored(module, example)
    return made_args, made_kwargs, plain_input(dynamic), restored


def plain_input(value: Any) -> Any:
    """Convert each named tuple and dataclass in a value to a dict. If it has none, return it unchanged."""
    is_input = type(value).__module__.partition(".")[0] not in _NOT_INPUTS
    if is_input and (fields := fields_of(value)) is not None:
        return {name: plain_input(each) for name, each in fields.items()}
    if type(value) not in _CONTAINERS:
        return value
    parts = value if isinstance(value, dict) else dict(enumerate(value))
    made = {key: plain_input(part) for key, part in parts.items()}
    if all(made[key] is part for key, part in parts.items()):
        return value
    return made if isinstance(value, dict) else type(value)(made.values())


@contextmanager
def inputs_restored(module: nn.Module, example: tuple[Any, Any]) -> Iterator[None]:
    """Enter a context in which `module.forward` converts plain containers to the classes of the example."""
    original: Callable[..., Any] = module.forward

    @wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _restored((args, kwargs), example)
        return original(*args, **kwargs)

    with patched_forward(module, forward):
        yield


def _restored(value: Any, example: Any) -> Any:
    if (fields := fields_of(example)) is not None:
        made = {name: _restored(value[name], each) for name, each in fields.items()}
        if isinstance(example, tuple):
            return type(example)(**made)
        restored = copy.copy(example)
        for name, part in made.items():
            object.__setattr__(restored, name, part)
        return restored
    if type(example) not in _CONTAINERS or type(value) is not type(example):
        return value
    if isinstance(example, dict):
        return {key: _restored(part, example[key]) for key, part in value.items()}
    return type(value)(_restored(part, each) for part, each in zip(value, example, strict=True))


def own_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs. A tensor that is passed twice or that the module owns is replaced by a copy."""
    known = set(map(id, _held_tensors(module)))
    tensors = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    if len({*map(id, tensors)} - known) == len(tensors):
        return args, dict(kwargs)

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = _another(leaf) if id(leaf) in known else leaf
        known.add(id(made))
        return made

    made_args, made_kwargs = tree_map(own, (args, dict(kwargs)))
    return made_args, made_kwargs


def _another(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, FakeTensor):
        return example_to_fake(tensor.fake_mode, tensor, tensor.device)
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _held_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    for part in module.modules():
        for held in (*part.parameters(recurse=False), *part.buffers(recurse=False), *vars(part).values()):
            if isinstance(held, torch.Tensor):
                yield held
