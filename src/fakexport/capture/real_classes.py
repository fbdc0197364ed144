"""What `type(x)` is while a model is traced: the class that the value has at run time.

A tensor is a `FakeTensor` then and a dynamic size a `SymInt`: `{torch.Tensor: a}.get(type(x), b)` would
return `b`. Python looks for the name `type` among the globals of a file first, and finds this one during a
trace.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

from torch import nn

from fakexport._torch.real_type import RealType
from fakexport.program import is_model_code, is_user_code

_is_model_code = cache(is_model_code)


@contextmanager
def real_classes(module: nn.Module) -> Iterator[None]:
    """Enter a context in which `type(x)` in files of the model returns the class that `x` has at run time."""
    places = {id(found): found for found in _globals_of_user(module) if "type" not in found}
    for place in places.values():
        place["type"] = RealType
    try:
        yield
    finally:
        for place in places.values():
            if place.get("type") is RealType:
                del place["type"]


def _globals_of_user(module: nn.Module) -> Iterator[dict[str, Any]]:
    for found in list(sys.modules.values()):
        path = getattr(found, "__file__", None)
        if isinstance(path, str) and _is_model_code(path):
            yield vars(found)
    owners = {owner for kind in {type(part) for part in module.modules()} for owner in kind.__mro__}
    for function in (value for owner in owners for value in vars(owner).values()):
        if isinstance(function, FunctionType) and is_user_code(function.__code__.co_filename):
            yield function.__globals__
