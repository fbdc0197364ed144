"""Corrections of `torch.export` for cases in which it returns a wrong program or fails.

Fake tensors of a different mode: export converts the tensors that it finds (parameters, buffers, inputs) to
its own fake mode, but not tensors in plain attributes or other Python objects. Some operators return their
argument itself (`copy_`, a no-op `.to`). If the argument is such a tensor, the value of the operator's node
is a fake tensor of the model's mode, and export rejects the program. For a real tensor, torch creates a new
fake tensor in the trace's mode. With this module, the same happens for a fake tensor of a different mode.
Seen on torch 2.11 to 2.13. Source: `torch/fx/experimental/proxy_tensor.py:extract_val`,
`torch/_guards.py:detect_fake_mode`.

`tensor.data`: this attribute bypasses dispatch modes. The tensor that `x.data` returns is unknown to the
trace and becomes a constant. After `x.data = y`, the trace continues with the old value. torch.export rejects
a read of `.data` if the constant is a fake tensor, and returns a wrong program after an assignment. With this
module, a trace sees `x.data` as `x.detach()`, and `x.data = y` raises an error. Seen on torch 2.13 and 2.15.
Source: `torch/csrc/autograd/python_variable.cpp:THPVariable_get_data`, `THPVariable_set_data`.

Slices of unknown size: if `rows` has a data-dependent number of rows, `rows[:1]` has `Min(1, u0)` rows. In
`rows + rows[:1]`, torch assumes that an unknown size is not 1 and adds the assertion `u0 == Min(1, u0)` to
the program. The program then rejects more than one row, although eager mode broadcasts.
`torch._check(rows.shape[0] != 0)` has no effect, because torch derives no bound from it. With
`torch._check(rows.shape[0] > 0)`, torch knows that the size is 1. Seen on torch 2.11 to 2.15. Source:
`torch/_subclasses/fake_impls.py:infer_size`, `torch/_refs/__init__.py:_broadcast_shapes`,
`torch/_prims/__init__.py:_broadcast_in_dim_meta`.

Assigned buffers (`self.steps = self.steps + 1`): at the end of the program, torch.export copies the last
value into the buffer, but only for buffers of the root module. Buffers of submodules keep their first value,
and there is no warning. A buffer that `forward` registers is not an input of the program. torch.export then
writes the last value to the input at the buffer's position, and so overwrites a tensor that the caller
passes. Seen on torch 2.13 and 2.15. Source:
`torch/_functorch/_aot_autograd/utils.py:register_buffer_assignment_hook`,
`torch/export/_trace.py:_export_to_aten_ir_make_fx`.
"""

from __future__ import annotations

import sys
from typing import Any

import sympy
import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import _trace
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import Max, Min

from fakexport._torch.emulation.fake_tensors import active_fake_mode
from fakexport._torch.patching import Patches, in_force, outside_of_patches

from .decided_branches import asking_frame

DATA_ASSIGNED = "torch.export does not see assignments to `.data`"
UNKNOWN_BROADCAST = "torch.export cannot know whether the size of this slice is 1"

_BROADCASTS = frozenset(
    function.__code__
    for function in (
        fake_impls.infer_size,
        torch._refs._broadcast_shapes,
        torch._prims._broadcast_in_dim_meta,
    )
)


def corrected_traces() -> Patches:
    """Return a context with all corrections of a trace except `buffer_assignments_ignored`.

    An assignment to `.data` raises a RuntimeError that starts with `DATA_ASSIGNED`. `Module.to` may still
    assign it, but fails in a trace for other reasons. A broadcast slice of unknown size raises a RuntimeError
    that starts with `UNKNOWN_BROADCAST`.
    """
    stock_snapshot = in_force(proxy_tensor, "snapshot_fake")
    stock_data: Any = in_force(FakeTensor, "data")
    stock_guard = in_force(ShapeEnv, "guard_or_defer_runtime_assert")

    def snapshot(value: torch.Tensor, include_real: bool = False) -> Any:
        mode = active_fake_mode()
        if mode is None or not isinstance(value, FakeTensor) or value.fake_mode is mode:
            return stock_snapshot(value, include_real)
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)

    def get(tensor: torch.Tensor) -> Any:
        return stock_data.__get__(tensor) if get_proxy_mode() is None else tensor.detach()

    def set_(tensor: torch.Tensor, other: torch.Tensor) -> None:
        asking = outside_of_patches(sys._getframe(1))
        is_moving = asking is not None and asking.f_code is torch.nn.Module._apply.__code__
        if get_proxy_mode() is not None and not is_moving:
            raise RuntimeError(f"{DATA_ASSIGNED}: the program would use the old value")
        stock_data.__set__(tensor, other)

    def guard_or_defer(environment: ShapeEnv, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            isinstance(orig_expr, sympy.Eq)
            and orig_expr.has(Min, Max)
            and (frame := asking_frame(sys._getframe(1))) is not None
            and frame.f_code in _BROADCASTS
        ):
            few = [each for each in orig_expr.args if _is_one_unless_empty(each)]
            others = [each for each in orig_expr.args if each not in few]
            if few and others and environment._maybe_evaluate_static(orig_expr) is not sympy.true:
                raise RuntimeError(
                    f"{UNKNOWN_BROADCAST}: the size {few[0]} is combined with a dimension of size "
                    f"{others[0]}. torch assumes that {few[0]} is not 1, so the program would reject "
                    "inputs that eager mode broadcasts"
                )
        return stock_guard(environment, orig_expr, *args, **kwargs)

    return Patches(
        {
            (proxy_tensor, "snapshot_fake"): snapshot,
            (FakeTensor, "data"): property(get, set_),
            (ShapeEnv, "guard_or_defer_runtime_assert"): guard_or_defer,
        }
    )


def _is_one_unless_empty(size: Any) -> bool:
    """Return whether an expression with symbols is 1 for large values of its symbols."""
    symbols = sorted(size.free_symbols, key=str)
    return bool(symbols) and all(
        size.xreplace({symbol: sympy.Integer(start + 7 * i) for i, symbol in enumerate(symbols)}) == 1
        for start in (101, 1009)
    )


class _Handle:
    def remove(self) -> None:
        """Do nothing: there is no hook to remove."""


def buffer_assignments_ignored() -> Patches:
    """Return a context in which torch.export does not write assigned buffers back. The caller must do it."""

    def register(module: Any, assigned_buffers: dict[str, str]) -> _Handle:
        return _Handle()

    return Patches({(_trace, "register_buffer_assignment_hook"): register})
