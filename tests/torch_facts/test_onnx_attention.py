"""torch's translation of attention gives a row that is hidden altogether the mean, or NaN."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("torchlib_read_once")


class Attention(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.slow
def test_a_hidden_row_is_zero_in_torch_and_the_mean_in_onnx() -> None:
    x = torch.arange(6.0).reshape(1, 1, 3, 2)
    mask = torch.tensor([[True, False, False], [False, False, False], [True, True, True]])
    made = torch.onnx.export(torch.export.export(Attention(), (x, mask)), verbose=False)
    assert made is not None

    (found,) = made(x, mask)

    expected = Attention()(x, mask)
    torch.testing.assert_close(found[0, 0, [0, 2]], expected[0, 0, [0, 2]])
    assert torch.equal(expected[0, 0, 1], torch.zeros(2))
    torch.testing.assert_close(found[0, 0, 1], x[0, 0].mean(dim=0))


@pytest.mark.slow
def test_a_row_that_numbers_hide_is_zero_in_torch_and_nan_in_onnx() -> None:
    x = torch.arange(6.0).reshape(1, 1, 3, 2)
    mask = torch.tensor([[0, -torch.inf, -torch.inf], [-torch.inf] * 3, [0, 0, 0]])
    made = torch.onnx.export(torch.export.export(Attention(), (x, mask)), verbose=False)
    assert made is not None

    (found,) = made(x, mask)

    expected = Attention()(x, mask)
    torch.testing.assert_close(found[0, 0, [0, 2]], expected[0, 0, [0, 2]])
    assert torch.equal(expected[0, 0, 1], torch.zeros(2))
    assert found[0, 0, 1].isnan().all()
