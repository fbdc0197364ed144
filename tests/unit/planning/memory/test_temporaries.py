"""What kernels take for themselves is counted: the peak of one operator is what torch's profiler records."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.nn import functional

import fakexport as fe
from fakexport._torch.costs.operator_memory import is_computed_by_onednn
from fakexport.planning.memory.convolution import BLOCKS
from fakexport.planning.memory.liveness import liveness, sizes_at
from tests.measured_memory import measured_peak

CAPABILITY = torch.backends.cpu.get_cpu_capability()

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
    "channels that fill no block": lambda x: functional.conv2d(
        x[:, :12], torch.ones(20, 12, 3, 3), torch.ones(20)
    ),
    "depthwise convolution of few channels": lambda x: functional.conv2d(
        x[:, :12], torch.ones(12, 1, 3, 3), torch.ones(12), groups=12
    ),
    "strided convolution of pixels that does not take them all": lambda x: functional.conv2d(
        x[..., 1:, 1:], torch.ones(48, 32, 1, 1), stride=2
    ),
    "convolution of volumes": lambda x: functional.conv3d(
        x.view(-1, 8, 4, 24, 16), torch.ones(24, 8, 3, 3, 3), padding=1
    ),
}
TRANSPOSED: dict[str, Function] = {
    "with strides": lambda x: functional.conv_transpose2d(x, torch.ones(32, 48, 4, 4), torch.ones(48), 2, 1),
    "without strides": lambda x: functional.conv_transpose2d(x, torch.ones(32, 12, 3, 3), torch.ones(12)),
    "without strides and bias": lambda x: functional.conv_transpose2d(x, torch.ones(32, 12, 3, 3)),
    "depthwise": lambda x: functional.conv_transpose2d(
        x, torch.ones(32, 1, 3, 3), torch.ones(32), 2, groups=32
    ),
    "volumes": lambda x: functional.conv_transpose3d(
        x.view(-1, 8, 4, 24, 16), torch.ones(8, 24, 2, 2, 2), stride=2
    ),
    "series": lambda x: functional.conv_transpose1d(x.flatten(2), torch.ones(32, 20, 3)),
}
UNFOLDED: dict[str, Function] = {
    "images": lambda x: functional.conv2d(x, torch.ones(48, 32, 3, 3).bfloat16(), padding=1),
    "series": lambda x: functional.conv1d(x.flatten(2), torch.ones(48, 32, 3).bfloat16()),
    "volumes": lambda x: functional.conv3d(x.view(-1, 8, 4, 24, 16), torch.ones(4, 8, 3, 3, 3).bfloat16()),
    "dilated": lambda x: functional.conv2d(x, torch.ones(48, 32, 3, 3).bfloat16(), dilation=2),
    "groups": lambda x: functional.conv2d(x, torch.ones(48, 8, 3, 3).bfloat16(), groups=4),
    "depthwise": lambda x: functional.conv2d(x, torch.ones(32, 1, 3, 3).bfloat16(), groups=32),
    "transposed": lambda x: functional.conv_transpose2d(x, torch.ones(32, 8, 3, 3).bfloat16(), stride=2),
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
    "resizing one channel": lambda x: functional.interpolate(x[:, :1], size=(120, 120), mode="bilinear"),
    "attention in float64": lambda x: functional.scaled_dot_product_attention(*[x.double()] * 3),
    "sampling grid": lambda x: functional.affine_grid(
        x[:, 0, :2, :3], (x.shape[0], 1, 24, 16), align_corners=False
    ),
    "instance norm in float64": lambda x: functional.instance_norm(x.double()),
    "roll": lambda x: x.roll((1, 1), (2, 3)),
    "sort": lambda x: x.sort(-1),
    "count": lambda x: (x > 0).sum(-1),
    "unfold": lambda x: functional.unfold(x, 3),
    "magnitude": lambda x: torch.fft.rfft(x).abs(),
    "distances": lambda x: torch.cdist(x.flatten(2), x.flatten(2)[:, :20]),
    "Fourier transform and back": lambda x: torch.fft.irfft2(torch.fft.rfft2(x)),
    "Fourier transform of columns": lambda x: torch.fft.fft(x, dim=2),
    "fold": lambda x: functional.fold(functional.unfold(x, 3), (24, 16), 3),
    "sum of exponentials": lambda x: x.logsumexp(-1),
    "k-th value": lambda x: x.kthvalue(3, -1)[0],
    "median": lambda x: x.median(),
    "infinite numbers": lambda x: x.isinf(),
    "mask times numbers": lambda x: x * (x > 0),
    "sum of two dtypes": lambda x: x + torch.ones(16, dtype=torch.float64),
    "comparison in bfloat16": lambda x: x.bfloat16() > x.bfloat16()[..., :1],
    "comparison of two dtypes": lambda x: x < torch.ones(24, 16, dtype=torch.float64),
    "sum instead of another dtype": lambda x: x.bfloat16().add_(x),
    "choice between two dtypes": lambda x: torch.where(x > 0, x, torch.zeros(16, dtype=torch.float64)),
    "quotient of integers": lambda x: x.long() / x.long(),
    "root of integers": lambda x: x.long().sqrt(),
    "sum in another dtype": lambda x: x.sum(-1, dtype=torch.float64),
    "concatenation of two dtypes": lambda x: torch.cat([x, x.double()]),
    "product of every other column": lambda x: x[0, 0, :, ::2] @ x[0, 0, :16:2, ::2],
    "products of every other column": lambda x: x[:, 0, :, ::2] @ x[:, 0, :16:2, ::2],
    "linear layer of turned rows": lambda x: functional.linear(
        x[0].transpose(0, 1), torch.ones(40, 16), torch.ones(40)
    ),
}
NEARLY: dict[str, Function] = {
    "loss": lambda x: functional.mse_loss(x, x + 1, reduction="sum"),
    "mean in another dtype": lambda x: x.mean(-1, dtype=torch.float64),
    "mean in bfloat16": lambda x: x.bfloat16().mean(-1),
    "mean loss": lambda x: functional.huber_loss(x, x),
    "entropy": lambda x: functional.binary_cross_entropy_with_logits(x, x),
}
RECURRENT: dict[str, nn.Module] = {
    "lstm": nn.LSTM(48, 64),
    "lstm with projections": nn.LSTM(48, 64, proj_size=16),
    "gru": nn.GRU(48, 64, batch_first=True),
    "gru in both directions": nn.GRU(48, 64, 2, bidirectional=True),
    "rnn": nn.RNN(48, 64, batch_first=True),
}


class _Module(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.skipif(CAPABILITY not in BLOCKS, reason="oneDNN works in other blocks on this processor")
def test_a_convolution_takes_blocks(name):
    assert _predicted_and_measured(IMAGES[name]) == (0, 0)


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.skipif(CAPABILITY != "AVX2", reason="transposed convolutions were measured on AVX2")
def test_a_transposed_convolution_takes_blocks(name):
    assert _predicted_and_measured(TRANSPOSED[name]) == (0, 0)


@pytest.mark.parametrize("name", UNFOLDED)
@pytest.mark.skipif(
    is_computed_by_onednn(torch.bfloat16) is not False, reason="oneDNN computes bfloat16 on this processor"
)
def test_a_convolution_without_onednn_unfolds_its_input(name):
    assert _predicted_and_measured(lambda x: UNFOLDED[name](x.bfloat16())) == (0, 0)


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.skipif(CAPABILITY != "AVX2", reason="the LSTM of oneDNN was measured on AVX2")
def test_a_recurrent_layer_is_within_two_percent(name):
    layer, x = RECURRENT[name].eval(), torch.randn(30, 8, 48)
    program = export(layer, (x,))
    module = program.module()

    predicted = sizes_at(liveness(program), {}).peak("cpu").run_bytes

    assert predicted == pytest.approx(measured_peak(lambda: module(x)), rel=0.02)


def test_a_plan_names_what_it_does_not_model():
    program = export(
        _Module(lambda x: functional.interpolate(x.flatten(2), 20)), (torch.randn(2, 32, 24, 16),)
    )

    report = fe.plan(program)

    (note,) = [text for text in report.left_out if "upsample_nearest1d" in text]
    assert note.endswith("memory that its kernel allocates internally is not modeled")
    assert Path(__file__).name in note


def test_memory_of_an_implementation_in_python_is_named():
    """torch's fake kernel loses dynamic rows, and its decomposition allocates more than the real kernel."""
    resized = _Module(lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"))
    program = export(resized, (torch.randn(1, 3, 40, 48),), dynamic_shapes=({2: Dim.AUTO},))

    assert [operator for _, operator in liveness(program).unmodeled] == ["aten.upsample_bilinear2d.vec"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rule_that_holds_for_float32_alone_says_so(dtype):
    index = torch.zeros(2, 4, dtype=torch.int64)
    program = export(_Module(lambda x: x.gather(1, index)), (torch.zeros(2, 4, dtype=dtype),))

    unmodeled = [operator for _, operator in liveness(program).unmodeled]

    assert unmodeled == (["aten.gather.default"] if dtype is torch.bfloat16 else [])


def test_the_workspace_of_cudnn_is_not_modeled():
    program = fe.export(lambda: nn.Conv2d(3, 8, 3), (torch.randn(2, 3, 24, 16),), target="H100")

    assert [operator for _, operator in liveness(program).unmodeled] == ["aten.convolution.default"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_kernel_takes_memory_of_its_own(name):
    assert _predicted_and_measured(OTHERS[name]) == (0, 0)


@pytest.mark.parametrize("name", NEARLY)
def test_a_kernel_takes_nearly_this_memory_of_its_own(name):
    assert _predicted_and_measured(NEARLY[name]) == pytest.approx((0, 0), abs=16)


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


def test_attention_without_a_fused_kernel_allocates_on_a_gpu_what_an_h200_recorded() -> None:
    """The allocations of a ViT with 64 images at its peak: torch 2.11, benchmarks/gpu_proof."""

    class Attention(nn.Module):
        def forward(self, query, key, value):
            heads = (x.view(64, 197, 12, 64).transpose(1, 2) for x in (query, key, value))
            mask = torch.ones((), dtype=torch.bool, device=query.device).expand(64, 1, 197, 197)
            return functional.scaled_dot_product_attention(*heads, mask)

    def factory():
        return Attention(), tuple(torch.zeros(64, 197, 768, dtype=torch.bfloat16) for _ in range(3))

    (device,) = fe.plan(factory, target="H200").points[0].devices

    mask, operands, scores = 4_967_552, 4 * 38_731_776, 2 * 119_221_248
    masked_rows = 29_805_312 + 151_296 + 4
    assert device.temporaries == mask + operands + scores + masked_rows
