"""What `device_operators` relies on: which operators torch has no fake kernel for."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.operator_coverage.device_only import device_only_operators, operators_with_own_kernel
from fakexport._torch.kernels.device_operators import fake_device_operators, fused_optimizers
from fakexport.emulation.devices import emulate

HAS_FUSED_CELLS = torch.__version__ >= "2.15"
"""Torch has meta kernels of the fused GRU cell from this version on; ours are for those before."""


def test_our_kernels_stand_in_for_operators_that_only_a_device_runs():
    lstm = "aten::_thnn_fused_lstm_cell"  # Torch's own asks the absent biases for their device.

    gru = {"aten::_thnn_fused_gru_cell", "aten::_thnn_fused_gru_cell_backward"} if HAS_FUSED_CELLS else set()
    assert set(operators_with_own_kernel()) - {lstm} - gru <= set(device_only_operators())
    assert lstm not in device_only_operators()


def test_a_meta_kernel_that_only_a_cuda_build_has_does_not_count():
    name = "aten::_cudnn_rnn_flatten_weight"
    has_meta = torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta")

    assert has_meta == (torch.version.cuda is not None)
    assert name in device_only_operators()


def test_the_kernels_are_gone_afterwards():
    operator = torch.ops.aten._thnn_fused_gru_cell.default

    with fake_device_operators(), fake_device_operators():
        assert operator in fake_impls.op_implementations_dict

    assert operator not in fake_impls.op_implementations_dict


@pytest.mark.parametrize(
    ("gates", "state", "bias"),
    [((3, 12), (3, 5), 12), ((3, 12), (2, 4), 12), ((3, 12), (3, 4), 8)],
    ids=["width", "batch", "bias"],
)
def test_sizes_that_the_device_would_refuse_are_refused(gates, state, bias):
    with emulate("H100"), FakeTensorMode(), torch.device("cuda"):
        given = [torch.empty(gates), torch.empty(gates), torch.empty(state)]
        biases = [torch.empty(bias), torch.empty(bias)]

        with pytest.raises(RuntimeError, match="expected a"):
            torch.ops.aten._thnn_fused_gru_cell(*given, *biases)


def step():
    weight, gradient = torch.ones(3, device="meta"), torch.ones(3, device="meta")
    numbers = dict.fromkeys(("weight_decay", "momentum", "lr", "dampening"), 0.1)
    torch._fused_sgd_([weight], [gradient], [], **numbers, nesterov=False, maximize=False, is_first_step=True)
    return weight


def test_stock_has_no_fake_kernel_of_a_fused_optimizer_and_ours_goes_again():
    with pytest.raises(NotImplementedError, match="_fused_sgd_"):
        step()

    with fused_optimizers():
        assert step().shape == (3,)

    with pytest.raises(NotImplementedError, match="_fused_sgd_"):
        step()
