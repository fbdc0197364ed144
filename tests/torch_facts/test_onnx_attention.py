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


MASKS = {
    "mean": torch.tensor([[True, False, False], [False, False, False], [True, True, True]]),
    "nan": torch.tensor([[0, -torch.inf, -torch.inf], [-torch.inf] * 3, [0, 0, 0]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("becomes", MASKS)
def test_a_hidden_row_is_zero_in_torch_and_the_mean_or_nan_in_onnx(becomes: str) -> None:
    x, mask = torch.arange(6.0).reshape(1, 1, 3, 2), MASKS[becomes]
    made = torch.onnx.export(torch.export.export(Attention(), (x, mask)), verbose=False)
    assert made is not None

    (found,) = made(x, mask)

    expected = Attention()(x, mask)
    torch.testing.assert_close(found[0, 0, [0, 2]], expected[0, 0, [0, 2]])
    assert torch.equal(expected[0, 0, 1], torch.zeros(2))
    hidden = x[0, 0].mean(dim=0) if becomes == "mean" else torch.full((2,), torch.nan)
    torch.testing.assert_close(found[0, 0, 1], hidden, equal_nan=True)
