"""The `tensor_meta` of nodes, computed once for each layout. Seen on torch 2.13.

Torch asks every value for its sizes, strides and memory format, through the function modes of the trace,
which count each question. For a weight among a thousand that costs more than all else that makes it an input.

Source: `torch/fx/passes/shape_prop.py:_extract_tensor_metadata`,
`torch/fx/experimental/proxy_tensor.py:TorchFunctionMetadataMode`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
from torch.fx.experimental import proxy_tensor
from torch.overrides import _get_current_function_mode_stack

from .fake_tensors import FakeTensor
from .patching import Patches, in_force

_OF_TRACES = (
    proxy_tensor.TorchFunctionMetadataMode,
    proxy_tensor.PreDispatchTorchFunctionMode,
    _NonStrictTorchFunctionHandler,
)


def remembered_metadata() -> Patches:
    """Return a context in which metadata of equal layouts is computed once; the trace counts the same."""
    stock = in_force(proxy_tensor, "_extract_tensor_metadata")
    known: dict[Any, tuple[Any, Any, dict[Any, int]]] = {}

    def metadata(result: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        tracers = _tracers()
        key = None if args or kwargs or tracers is None else _layout(result)
        if key is None or tracers is None:
            return stock(result, *args, **kwargs)
        key = (*key, len(tracers))
        if key in known:
            found, last, counts = known[key]
            for tracer in tracers:
                tracer.torch_fn_metadata = last
                for function, count in counts.items():
                    tracer.torch_fn_counts[function] = tracer.torch_fn_counts.get(function, 0) + count
            return found._replace(qparams={})
        before = dict(tracers[0].torch_fn_counts) if tracers else {}
        found = stock(result)
        last = tracers[0].torch_fn_metadata if tracers else None
        after = tracers[0].torch_fn_counts if tracers else {}
        counts = {f: n - before.get(f, 0) for f, n in after.items() if n != before.get(f, 0)}
        known[key] = (found, last, counts)
        return found

    return Patches({(proxy_tensor, "_extract_tensor_metadata"): metadata})


def _tracers() -> list[Any] | None:
    """Return the tracers that count the questions, at most one; None if another mode would hear them."""
    found = []
    for mode in _get_current_function_mode_stack():
        if type(mode) not in _OF_TRACES:
            return None
        if type(mode) is proxy_tensor.TorchFunctionMetadataMode:
            found.append(mode.tracer)
    return found if len(found) < 2 else None


def _layout(value: torch.Tensor) -> tuple[Any, ...] | None:
    """Return what the metadata of a fake tensor follows from; None where sizes are symbolic."""
    if type(value) is not FakeTensor:
        return None
    with torch._C.DisableTorchFunction():
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            return None
        numbers = (*value.shape, *value.stride())
        if not all(type(number) is int for number in numbers):
            return None
        return (numbers, value.dtype, value.requires_grad, getattr(value, "_is_param", False))
