"""What `_torch/device_operators.py` relies on."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode

from fakexport._torch.device_operators import (
    device_only_operators,
    fake_device_operators,
    operators_with_own_kernel,
)
from fakexport.devices import emulate
from tests.torch_facts.stock_torch import run_stock

HAS_FUSED_CELLS = torch.__version__ >= "2.15"
"""Torch has meta kernels of the fused GRU cell from this version on; ours are for those before."""


@pytest.mark.skipif(HAS_FUSED_CELLS, reason="this torch has them")
def test_stock_has_no_fake_kernel_of_the_fused_cells():
    ended = run_stock(
        "with FakeTensorMode():\n"
        "    x = torch.empty(3, 12, device='cuda')\n"
        "    torch.ops.aten._thnn_fused_gru_cell(x, x, torch.empty(3, 4, device='cuda'))"
    )

    assert ended.code != 0


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
