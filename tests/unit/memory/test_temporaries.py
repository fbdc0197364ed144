"""What kernels take for themselves is counted: the peak of one operator is what torch's profiler records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.nn import functional

from fakexport.memory.liveness import liveness
from fakexport.memory.peak import sizes_at
from tests.measured_memory import measured_peak

HAS_BLOCKS_OF_16 = torch.backends.cpu.get_cpu_capability() == "AVX512"

Function = Callable[[torch.Tensor], Any]

IMAGES: dict[str, Function] = {
    "convolution": lambda x: functional.conv2d(x, torch.ones(48, 32, 3, 3), padding=1),
    "convolution of few channels": lambda x: functional.conv2d(x[:, :3], torch.ones(7, 3, 7, 7), stride=2),
    "depthwise convolution": lambda x: functional.conv2d(x, torch.ones(32, 1, 3, 3), groups=32),
    "convolution of turned images": lambda x: functional.conv2d(x.transpose(2, 3), torch.ones(16, 32, 3, 3)),
    "channels last": lambda x: functional.conv2d(
        x.contiguous(memory_format=torch.channels_last), torch.ones(16, 32, 3, 3)
    ),
    "channels last, as wide as the kernel": lambda x: functional.conv2d(
        x[..., :2].contiguous(memory_format=torch.channels_last), torch.ones(16, 32, 2, 2), stride=2
    ),
    "channels last, in groups": lambda x: functional.conv2d(
        x.contiguous(memory_format=torch.channels_last), torch.ones(16, 16, 3, 3), groups=2
    ),
    "convolution of series": lambda x: functional.conv1d(x.flatten(2), torch.ones(16, 32, 3)),
    "strided convolution of pixels": lambda x: functional.conv2d(x, torch.ones(48, 32, 1, 1), stride=2),
    "patches": lambda x: functional.conv2d(x, torch.ones(16, 32, 4, 4), stride=4),
}
OTHERS: dict[str, Function] = {
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
    "masked attention": lambda x: functional.scaled_dot_product_attention(
        x, x, x, x[:, :1] @ x[:, :1].mT > 0
    ),
    "attention of other sizes": lambda x: functional.scaled_dot_product_attention(x, x, x[..., :8]),
    "batch norm": lambda x: functional.batch_norm(x, torch.zeros(32), torch.ones(32)),
    "softmax of turned rows": lambda x: x.transpose(2, 3).softmax(-1),
    "pooling of turned images": lambda x: functional.avg_pool2d(x.transpose(2, 3), 2),
    "resizing": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "resizing to many pixels": lambda x: functional.interpolate(x, size=(120, 120), mode="nearest"),
    "roll": lambda x: x.roll((1, 1), (2, 3)),
    "sort": lambda x: x.sort(-1),
    "count": lambda x: (x > 0).sum(-1),
    "unfold": lambda x: functional.unfold(x, 3),
    "magnitude": lambda x: torch.fft.rfft(x).abs(),
}


class _Module(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.skipif(not HAS_BLOCKS_OF_16, reason="oneDNN works in other blocks on this processor")
def test_a_convolution_takes_blocks(name: str) -> None:
    assert _predicted_and_measured(IMAGES[name]) == (0, 0)


@pytest.mark.parametrize("name", OTHERS)
def test_a_kernel_takes_memory_of_its_own(name: str) -> None:
    assert _predicted_and_measured(OTHERS[name]) == (0, 0)


def _predicted_and_measured(function: Function) -> tuple[int, int]:
    """Return how far the predictions of two batches are above what was measured."""
    program = export(_Module(function), (torch.randn(2, 32, 24, 16),), dynamic_shapes=({0: Dim.AUTO},))
    found, module = liveness(program), program.module()
    small, large = (
        sizes_at(found, dict.fromkeys(found.symbols, batch)).peak("cpu").run_bytes
        - _measured(module, torch.randn(batch, 32, 24, 16))
        for batch in (3, 5)
    )
    return small, large


def _measured(module: nn.Module, x: torch.Tensor) -> int:
    return measured_peak(lambda: module(x))
