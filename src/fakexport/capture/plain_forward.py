"""A `forward` whose program needs no package of the model: plain outputs, a plain signature."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fakexport._torch.pytree import container_children
from fakexport.error import InvalidType
from fakexport.sources import exchanged_forward


@contextmanager
def plain_forward(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Enter a context in which `module.forward` returns plain containers and declares just the given inputs.

    A signature with `**kwargs` would make export bundle the keyword inputs under a name of its own. The
    module's own `forward` comes back afterwards, as an attribute of the class or of the instance as before.
    """
    original: Callable[..., Any] = module.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        return plain(original(*inputs, **named))

    forward.__signature__ = _flat_signature(original, args, kwargs)  # type: ignore[attr-defined]
    with exchanged_forward(module, forward):
        yield


def plain(value: Any) -> Any:
    """Return the same tensors in tuples, lists and dicts only.

    Named fields stay names: a dict subclass (`transformers.modeling_outputs.*`), a dataclass and a named
    tuple become dicts. Fields that are None are left out. Another registered container (a KV cache) becomes
    the tuple of its children.
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
    """Return argument name -> value, in the order in which a program of `plain_forward` takes them.

    Raises:
        TypeError: `forward` does not take these inputs; the message names the input.
    """
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidType(f"{type(module).__name__}.forward: {error}") from None
    bound: dict[str, Any] = {}
    for name, value in signature.bind_partial(*args).arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            bound.update({f"{name}_{index}": item for index, item in enumerate(value)})
        else:
            bound[name] = value
    return {**bound, **kwargs}


def _flat_signature(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.Signature:
    signature = inspect.signature(forward)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
        return signature
    names = _positional_names(signature, args) + list(kwargs)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind, default=None) for name in names])


def _positional_names(signature: inspect.Signature, args: tuple[Any, ...]) -> list[str]:
    names: list[str] = []
    for name, value in signature.bind_partial(*args).arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{name}_{index}" for index in range(len(value)))
        else:
            names.append(name)
    return names
