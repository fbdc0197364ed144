"""What `load_state_dict` runs besides copying tensors, module by module. Seen on torch 2.11 to 2.13.

Source: `torch/nn/modules/module.py:Module._load_from_state_dict` and `Module.load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from .patching import Patches

_LOADING = "_load_from_state_dict"


def load_steps(module: nn.Module) -> list[tuple[str, Callable[..., Any]]]:
    """Return what changes a state dict before a module takes its tensors from it, with names, in order.

    These are hooks, and a method of the module's own class. They are called alike.
    """
    hooks = vars(module).get("_load_state_dict_pre_hooks", {}).values()
    steps = [(getattr(hook, "__name__", type(hook).__name__), hook) for hook in hooks]
    if _is_own(module, _LOADING):
        steps.append((_LOADING, getattr(module, _LOADING)))
    return steps


def other_loading(module: nn.Module) -> Iterator[str]:
    """Yield the names of what else runs when a module is loaded: it may do anything to the module."""
    hooks = vars(module).get("_load_state_dict_post_hooks", {}).values()
    yield from (getattr(hook, "__name__", type(hook).__name__) for hook in hooks)
    yield from (name for name in ("set_extra_state", "load_state_dict") if _is_own(module, name))


def _is_own(module: nn.Module, name: str) -> bool:
    """Return whether a class that is not torch's defines a method."""
    owner = next((kind for kind in type(module).__mro__ if name in vars(kind)), nn.Module)
    return owner.__module__.partition(".")[0] != "torch"


def nothing_taken() -> Patches:
    """Return a context in which modules take no tensors from a state dict."""
    return Patches({(nn.Module, _LOADING): lambda *args, **kwargs: None})
