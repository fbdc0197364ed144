"""Fake kernels for operators that torch only calls on an accelerator, and that have no meta kernels.

`nn.GRUCell` and `nn.LSTMCell` call a fused operator on a GPU, but not on the CPU. torch has no meta kernel
for the GRU operators, and its meta kernel for the LSTM operator fails without biases. Shapes and layouts of
these fake kernels match the CUDA kernels. The fused `SGD` and `Adagrad` write to their arguments and return
nothing. torch only has a meta kernel for the fused `Adam`. Seen on torch 2.11 to 2.13.

Source: `aten/src/ATen/native/RNN.cpp:GRUCell, LSTMCell`, `aten/src/ATen/native/cuda/RNN.cu`;
`aten/src/ATen/native/LossCTC.cpp:ctc_loss`; `torch/_subclasses/fake_impls.py:register_op_impl`;
`aten/src/ATen/native/native_functions.yaml:_fused_sgd_`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode

_aten = torch.ops.aten
_GRU_SAVED = 5  # Values that the fused GRU cell saves for backward, as a multiple of the hidden size.

Kernel = Callable[..., Any]
_FUSED = ("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr")


@contextmanager
def fake_device_operators() -> Iterator[None]:
    """Enter a context in which the operators in `KERNELS` have fake kernels."""
    table = fake_impls.op_implementations_dict
    before = {operator: table.get(operator) for operator in KERNELS}
    table.update(KERNELS)
    try:
        yield
    finally:
        for operator, kernel in before.items():
            if kernel is None:
                del table[operator]
            else:
                table[operator] = kernel


def _gru_cell(
    mode: FakeTensorMode,
    operator: Any,
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    _check_cell(3, input_gates, hidden_gates, hx, input_bias, hidden_bias)
    with mode:
        return _like(hx), hx.new_empty(hx.size(0), hx.size(1) * _GRU_SAVED)


def _gru_cell_backward(
    mode: FakeTensorMode, operator: Any, grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    with mode:
        gates = workspace.new_empty(workspace.size(0), workspace.size(1) // _GRU_SAVED * 3)
        biases = [gates.sum(0) if has_bias else None for _ in range(2)]
        return gates, torch.empty_like(gates), _like(grad_hy), *biases


def _lstm_cell(
    mode: FakeTensorMode,
    operator: Any,
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_cell(4, input_gates, hidden_gates, cx, input_bias, hidden_bias)
    with mode:
        return _like(cx), _like(cx), _like(input_gates)


def _check_cell(
    gates: int,
    input_gates: Tensor,
    hidden_gates: Tensor,
    state: Tensor,
    input_bias: Tensor | None,
    hidden_bias: Tensor | None,
) -> None:
    """Check the arguments as the CUDA kernels do."""
    torch._check(input_gates.ndim == 2, lambda: f"expected 2-d gates, got {input_gates.ndim}-d")
    width = input_gates.size(1)
    torch._check(
        input_gates.shape == hidden_gates.shape, lambda: f"{input_gates.shape} != {hidden_gates.shape}"
    )
    expected = (input_gates.size(0), width // gates)
    torch._check(
        tuple(state.shape) == expected, lambda: f"expected a state of shape {expected}, got {state.shape}"
    )
    for bias in (input_bias, hidden_bias):
        if bias is not None:
            torch._check(tuple(bias.shape) == (width,), lambda: f"expected a bias of length {width}")
    tensors = [t for t in (hidden_gates, state, input_bias, hidden_bias) if t is not None]
    torch._check(
        all(t.device == input_gates.device for t in tensors), lambda: "expected all inputs on one device"
    )


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _is_not_used(mode: FakeTensorMode, operator: Any, *args: Any, **kwargs: Any) -> bool:
    """Return False: cuDNN or MIOpen is not used. The CTC loss has the same shape in both cases."""
    return False


KERNELS: dict[Any, Kernel] = {
    _aten._thnn_fused_gru_cell.default: _gru_cell,
    _aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    _aten._thnn_fused_lstm_cell.default: _lstm_cell,
    _aten._use_cudnn_ctc_loss.default: _is_not_used,
    _aten._use_cudnn_ctc_loss.Tensor: _is_not_used,
    _aten._use_miopen_ctc_loss.default: _is_not_used,
    _aten._use_miopen_ctc_loss.Tensor: _is_not_used,
}


@contextmanager
def fused_optimizers() -> Iterator[None]:
    """Enter a context in which every fused optimizer runs on fake tensors."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in _FUSED:
            if _lacks_meta_kernel(f"aten::{name}"):
                library.impl(name, _nothing, "Meta")
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing: a fused optimizer does not change shapes, dtypes or devices."""


def _lacks_meta_kernel(name: str) -> bool:
    try:
        return not torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")
    except RuntimeError:  # No such operator in this release.
        return False
