"""Find the code that `load_state_dict` runs in addition to copying tensors. Seen on torch 2.11 to 2.13.

Source: `torch/nn/modules/module.py:Module._load_from_state_dict` and `Module.load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from fakexport._torch.patching import Patches

Tensors = dict[str, torch.Tensor]
Step = Callable[[Tensors, str], Tensors | None]

_LOADING = "_load_from_state_dict"


def load_steps(module: nn.Module) -> list[tuple[str, Step]]:
    """Return what may change a state dict before a module loads it, in order, with its name.

    These are the pre-hooks, and `_load_from_state_dict` if the module's class overrides it. A step takes a
    state dict and a prefix, and returns the dict that the module then loads: the same dict for a pre-hook,
    and the dict that the method passes to torch's method, or None unless it calls that method once.
    """
    hooks = vars(module).get("_load_state_dict_pre_hooks", {}).values()
    steps: list[tuple[str, Step]] = [
        (getattr(hook, "__name__", type(hook).__name__), partial(_hooked, hook)) for hook in hooks
    ]
    if _is_own(module, _LOADING):
        steps.append((_LOADING, partial(_offered, getattr(module, _LOADING))))
    return steps


def _hooked(hook: Callable[..., Any], tensors: Tensors, prefix: str) -> Tensors:
    hook(tensors, prefix, {}, True, [], [], [])
    return tensors


def _offered(method: Callable[..., Any], tensors: Tensors, prefix: str) -> Tensors | None:
    offered: list[Tensors] = []
    with Patches({(nn.Module, _LOADING): lambda module, given, *rest, **named: offered.append(given)}):
        method(tensors, prefix, {}, True, [], [], [])
    return offered[0] if len(offered) == 1 else None


def other_loading(module: nn.Module) -> Iterator[str]:
    """Yield the names of functions that run during loading, except those that `load_steps` returns.

    These functions may change the module in any way.
    """
    hooks = vars(module).get("_load_state_dict_post_hooks", {}).values()
    yield from (getattr(hook, "__name__", type(hook).__name__) for hook in hooks)
    yield from (name for name in ("set_extra_state", "load_state_dict") if _is_own(module, name))


def _is_own(module: nn.Module, name: str) -> bool:
    """Return whether a class outside of torch overrides this method of the module."""
    owner = next((kind for kind in type(module).__mro__ if name in vars(kind)), nn.Module)
    return owner.__module__.partition(".")[0] != "torch"


def nothing_taken() -> Patches:
    """Return a context in which modules load no tensors from a state dict."""
    return Patches({(nn.Module, _LOADING): lambda *args, **kwargs: None})
