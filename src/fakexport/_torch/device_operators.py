"""Fake kernels of operators that torch calls on a device only, and has no meta kernel for.

`nn.GRUCell` and `nn.LSTMCell` call one fused operator on a GPU and none of them on the CPU. Torch has no meta
kernel for those of the GRU, and the one for the LSTM's fails without biases. Shapes and layouts are those of
the CUDA kernels. Seen on torch 2.11 to 2.13.

Source: `aten/src/ATen/native/RNN.cpp:GRUCell, LSTMCell`, `aten/src/ATen/native/cuda/RNN.cu`;
`aten/src/ATen/native/LossCTC.cpp:ctc_loss`; `torch/_subclasses/fake_impls.py:register_op_impl`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode

_aten = torch.ops.aten
_GRU_SAVED = 5  # What the forward of the fused GRU cell keeps for its backward, in hidden sizes.
_KERNEL_KEYS = (
    *("CPU", "Meta", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU", "NestedTensorCPU"),
    *("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"),
)

_OF_A_DEVICE = re.compile(r"^Meta: registered at \S*/native/(?:cudnn|miopen|cuda|mps)/", re.MULTILINE)

Kernel = Callable[..., Any]


def device_only_operators() -> tuple[str, ...]:
    """Return the names of torch's operators without a kernel of the CPU, of `Meta` or of a composition.

    Only a device can run them, and fake mode cannot replace it. A meta kernel that only a build for a device
    has does not count: the names are those of every build.
    """
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return tuple(sorted(name for name in names if not _has_kernel(name)))


def _has_kernel(name: str) -> bool:
    keys = [key for key in _KERNEL_KEYS if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]
    return bool(keys) and not (keys == ["Meta"] and _OF_A_DEVICE.search(torch._C._dispatch_dump(name)))


def operators_with_own_kernel() -> tuple[str, ...]:
    """Return the names of the operators for which `fake_device_operators` has a kernel."""
    return tuple(sorted(operator.name() for operator in _KERNELS))


@contextmanager
def fake_device_operators() -> Iterator[None]:
    """Enter a context in which these operators have fake kernels."""
    table = fake_impls.op_implementations_dict
    before = {operator: table.get(operator) for operator in _KERNELS}
    table.update(_KERNELS)
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
    """What the CUDA kernels check before they run."""
    torch._check(input_gates.ndim == 2, lambda: f"expected 2-d gates, got {input_gates.ndim}-d")
    width = input_gates.size(1)
    torch._check(
        input_gates.shape == hidden_gates.shape, lambda: f"{input_gates.shape} != {hidden_gates.shape}"
    )
    expected = (input_gates.size(0), width // gates)
    torch._check(tuple(state.shape) == expected, lambda: f"expected a state of {expected}, got {state.shape}")
    for bias in (input_bias, hidden_bias):
        if bias is not None:
            torch._check(tuple(bias.shape) == (width,), lambda: f"expected a bias of {width}")
    tensors = [t for t in (hidden_gates, state, input_bias, hidden_bias) if t is not None]
    torch._check(
        all(t.device == input_gates.device for t in tensors), lambda: "expected all inputs on one device"
    )


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _is_not_used(mode: FakeTensorMode, operator: Any, *args: Any, **kwargs: Any) -> bool:
    """Choose the kernel, which is not part of the program; the loss of each has the same shape."""
    return False


_KERNELS: dict[Any, Kernel] = {
    _aten._thnn_fused_gru_cell.default: _gru_cell,
    _aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    _aten._thnn_fused_lstm_cell.default: _lstm_cell,
    _aten._use_cudnn_ctc_loss.default: _is_not_used,
    _aten._use_cudnn_ctc_loss.Tensor: _is_not_used,
    _aten._use_miopen_ctc_loss.default: _is_not_used,
    _aten._use_miopen_ctc_loss.Tensor: _is_not_used,
}
