"""Pass each operator of a pre-dispatch trace to the tracer with less overhead. Seen on torch 2.13.

For each call, torch defines a handler with a context manager, and flattens the arguments to collect their
classes, which the tracer does not read. This takes 10 percent of a trace that uses the operator memo. It
can be removed when torch caches the handler.

Source: `torch/_ops.py:OpOverload._get_dispatch`, `torch/_library/utils.py:handle_dispatch_mode`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import _ops
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from fakexport._torch.patching import Patches, in_force

_C: Any = torch._C
_PYTHON, _PRE_DISPATCH = _C.DispatchKey.Python, _C.DispatchKey.PreDispatch


def quick_handlers() -> Patches:
    """Return a context for a trace. If any mode other than the tracer's is active, torch's handler runs."""
    stock = in_force(_ops.OpOverload, "_get_dispatch")
    modes: Any = _ops.mode_stack_state_for_pre_dispatch()

    def get_dispatch(operator: Any, key: Any) -> Any:
        if (
            type(modes.get(0)) is ProxyTorchDispatchMode
            and modes.count() == 1
            and _C._to_functionality_key(key) == _PRE_DISPATCH
            and not _C._dispatch_tls_is_dispatch_key_excluded(_PYTHON)
        ):
            return partial(_handled, operator)
        return stock(operator, key)

    return Patches({(_ops.OpOverload, "_get_dispatch"): get_dispatch})


def _handled(operator: Any, *args: Any, **kwargs: Any) -> Any:
    mode: Any = _ops._pop_mode_from_pre_dispatch()
    try:
        return mode.__torch_dispatch__(operator, (), args, kwargs)
    finally:
        _ops._set_mode_pre_dispatch(mode)
