"""Extract the metadata of traced values once per layout. Seen on torch 2.13.

torch reads the sizes, strides and memory format of every value, to record and to track the value. These reads
go through the function modes of the trace, which count each of them. For a model with a thousand weights,
this is the largest part of the cost of an input: 5 percent of a trace. It can be removed when torch reads
without the modes.

Source: `torch/fx/passes/shape_prop.py:_extract_tensor_metadata`,
`torch/fx/experimental/proxy_tensor.py:track_tensor, TorchFunctionMetadataMode`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler
from torch.fx.experimental import proxy_tensor
from torch.overrides import _get_current_function_mode_stack

from fakexport._torch.emulation.fake_tensors import FakeTensor
from fakexport._torch.patching import Patches, in_force

_OF_TRACES = (
    proxy_tensor.TorchFunctionMetadataMode,
    proxy_tensor.PreDispatchTorchFunctionMode,
    _NonStrictTorchFunctionHandler,
)


def remembered_metadata() -> Patches:
    """Return patches with which torch reads the metadata of values once per layout.

    The modes of the trace still count the calls of a repeated read.
    """
    stock = in_force(proxy_tensor, "_extract_tensor_metadata")
    stock_track = in_force(proxy_tensor, "track_tensor")
    known: dict[Any, CountedAnswer] = {}

    def metadata(result: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        tracers = counting_tracers()
        layout = None if args or kwargs or tracers is None else _layout(result)
        if layout is None or tracers is None:
            return stock(result, *args, **kwargs)
        key = (*layout, len(tracers))
        if key in known:
            return known[key].again(tracers)._replace(qparams={})
        known[key] = CountedAnswer.of(tracers, lambda: stock(result))
        return known[key].answer

    def track(tensor: torch.Tensor, proxy: Any, *, constant: torch.Tensor | None, tracer: Any) -> None:
        tracers = counting_tracers()
        # A static size gets no node, so tracking the tensor has no effect that depends on the layout.
        if tracers is None or _layout(tensor) is None:
            stock_track(tensor, proxy, constant=constant, tracer=tracer)
        elif (found := known.get(len(tracers))) is None:
            known[len(tracers)] = CountedAnswer.of(
                tracers, lambda: stock_track(tensor, proxy, constant=constant, tracer=tracer)
            )
        else:
            found.again(tracers)
            proxy_tensor.set_proxy_slot(tensor, tracer, proxy_tensor._ProxyTensor(proxy, constant))

    return Patches(
        {
            (proxy_tensor, "_extract_tensor_metadata"): metadata,
            (proxy_tensor, "track_tensor"): track,
        }
    )


class CountedAnswer:
    """A result, with the function calls that the trace counted while it was read.

    Args:
        answer: The result.
        last: The last torch function that was called for it.
        counts: Number of calls of each function.
    """

    def __init__(self, answer: Any, last: Any, counts: dict[Any, int]) -> None:
        self.answer = answer
        self._last = last
        self._counts = counts

    @classmethod
    def of(cls, tracers: list[Any], ask: Callable[[], Any]) -> CountedAnswer:
        before = dict(tracers[0].torch_fn_counts) if tracers else {}
        answer = ask()
        last = tracers[0].torch_fn_metadata if tracers else None
        after = tracers[0].torch_fn_counts if tracers else {}
        return cls(answer, last, {f: n - before.get(f, 0) for f, n in after.items() if n != before.get(f, 0)})

    def again(self, tracers: list[Any]) -> Any:
        """Return the result, and add to the tracers' counts as if the functions had been called again."""
        for tracer in tracers:
            tracer.torch_fn_metadata = self._last
            for function, count in self._counts.items():
                tracer.torch_fn_counts[function] = tracer.torch_fn_counts.get(function, 0) + count
        return self.answer


def counting_tracers() -> list[Any] | None:
    """Return a list with the tracer that counts function calls, if any; None if other modes are active."""
    found = []
    for mode in _get_current_function_mode_stack():
        if type(mode) not in _OF_TRACES:
            return None
        if type(mode) is proxy_tensor.TorchFunctionMetadataMode:
            found.append(mode.tracer)
    return found if len(found) < 2 else None


def _layout(value: torch.Tensor) -> tuple[Any, ...] | None:
    """Return a key that determines a fake tensor's metadata, or None if its sizes are symbolic."""
    if type(value) is not FakeTensor:
        return None
    with torch._C.DisableTorchFunction():
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            return None
        numbers = (*value.shape, *value.stride())
        if not all(type(number) is int for number in numbers):
            return None
        return (numbers, value.dtype, value.requires_grad, getattr(value, "_is_param", False))
