"""Everything that torch keeps per process or per thread and that code or operators may ask for.

Seen on torch 2.13.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from typing import Any

import torch
from torch.nn.utils import parametrize
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_DEVICE_TYPES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia")
_FLAGS = (
    "cuda.matmul.allow_tf32",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cudnn.allow_tf32",
    "mkldnn.enabled",
)


def global_modes() -> tuple[Any, ...]:
    """Return what must be equal for two calls to be traced alike; compare with `==`."""
    with torch._C.DisableTorchFunction():  # A trace counts the functions of torch that are called.
        default_device = str(torch.get_default_device())
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_cache_enabled(),
        tuple(
            (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in _DEVICE_TYPES
            if torch.amp.is_autocast_available(kind)
        ),
        torch.get_default_dtype(),
        default_device,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch._C._get_deterministic_fill_uninitialized_memory(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
        torch.get_num_threads(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        tuple(_flag(name) for name in _FLAGS),
        torch.autograd.forward_ad._current_level,
        torch._C._functorch.maybe_current_level(),
        parametrize._cache_enabled,
        _device_state(),
        tuple(map(id, _get_current_function_mode_stack())),
        tuple(map(id, _get_current_dispatch_mode_stack())),
        torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch.compiler.is_exporting(),
        torch.initial_seed(),
        repr(torch._tensor_str.PRINT_OPTS),
        repr(sorted(torch.fx.traceback.current_meta.items(), key=str)),
        tuple(os.environ.items()),
    )


def foreign_mode() -> str | None:
    """Return the name of an active mode that is neither of torch nor of fakexport: it may keep anything."""
    for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()):
        if type(mode).__module__.partition(".")[0] not in ("torch", "fakexport"):
            return type(mode).__qualname__
    return None


def hooks_of_all_modules() -> list[dict[Any, Any]]:
    """Return the hooks that run at the calls of all modules, and what is known of them."""
    held = vars(torch.nn.modules.module)
    return [
        value
        for name, value in held.items()
        if name.startswith("_global_") and isinstance(value, dict) and value
    ]


def random_states() -> tuple[Any, ...]:
    """Return the states of the generators that Python code may draw from."""
    numpy_random = sys.modules.get("numpy.random")
    numpy_state = None if numpy_random is None else pickle.dumps(numpy_random.get_state(legacy=False))
    return random.getstate(), numpy_state, bytes(torch.default_generator.get_state().numpy())


def _flag(path: str) -> Any:
    value: Any = torch.backends
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _device_state() -> tuple[Any, ...]:
    if not torch.accelerator.is_available():
        return ()
    return torch.accelerator.current_device_index(), repr(torch.accelerator.current_stream())
