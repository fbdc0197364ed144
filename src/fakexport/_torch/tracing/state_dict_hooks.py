"""Find the code that `load_state_dict` runs in addition to copying tensors. Seen on torch 2.11 to 2.13.

Source: `torch/nn/modules/module.py:Module._load_from_state_dict` and `Module.load_state_dict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from fakexport._torch.patching import Patches

_LOADING = "_load_from_state_dict"


def load_steps(module: nn.Module) -> list[tuple[str, Callable[..., Any]]]:
    """Return the callables that may change a state dict before a module loads it, in order, with their names.

    These are the pre-hooks, and `_load_from_state_dict` if the module's class overrides it. All have the same
    signature.
    """
    hooks = vars(module).get("_load_state_dict_pre_hooks", {}).values()
    steps = [(getattr(hook, "__name__", type(hook).__name__), hook) for hook in hooks]
    if _is_own(module, _LOADING):
        steps.append((_LOADING, getattr(module, _LOADING)))
    return steps


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
