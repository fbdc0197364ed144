"""Wrap `forward` so that the program has plain inputs and outputs, and loads without the model's package."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fakexport._torch.pytree import container_children
from fakexport.error import InvalidType
from fakexport.models.sources import patched_forward


@contextmanager
def plain_forward(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Enter a context in which `module.forward` returns plain containers and declares only the given inputs.

    If a signature has `**kwargs`, export groups the keyword inputs under a new name, so all inputs are
    declared. On exit, the original `forward` is restored, as an attribute of the class or of the instance.
    """
    original: Callable[..., Any] = module.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        return plain(original(*inputs, **named))

    forward.__signature__ = _flat_signature(original, args, kwargs)  # type: ignore[attr-defined]
    with patched_forward(module, forward):
        yield


def plain(value: Any) -> Any:
    """Convert containers to tuples, lists and dicts with the same tensors.

    Field names are kept: a dict subclass (`transformers.modeling_outputs.*`), a dataclass and a named tuple
    become dicts. Fields that are None are omitted. Other registered containers (a KV cache) become the tuple
    of their children.
    """
    if value is None or isinstance(value, (Tensor, bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in value._fields}
    if type(value) in (tuple, list):
        return type(value)(plain(item) for item in value)
    children = container_children(value)
    if children is not None:
        return tuple(plain(child) for child in children)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(item) for name, item in fields.items() if item is not None}
    return value


def bound_inputs(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs by argument name, in the order in which a program with `plain_forward` takes them.

    Raises:
        TypeError: `forward` does not accept these inputs. The message names the input.
    """
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidType(f"{type(module).__name__}.forward: {error}") from None
    return {**dict(_positional(signature, args)), **kwargs}


def _flat_signature(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.Signature:
    signature = inspect.signature(forward)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
        return signature
    names = [*(name for name, _ in _positional(signature, args)), *kwargs]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind, default=None) for name in names])


def _positional(signature: inspect.Signature, args: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each positional input. The items of `*args` are numbered."""
    for name, value in signature.bind_partial(*args).arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}_{index}", item) for index, item in enumerate(value))
        else:
            yield name, value
