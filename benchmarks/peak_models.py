"""Small models of many kinds for `cpu_peaks`: layers, recurrent networks, convolutions, attention, blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A model and the inputs of one call.

    Args:
        make: Returns the module.
        shapes: Shape of each input; the first dimension is the batch.
        dtype: Dtype of weights and inputs.
        integers: Inputs are integers below this number; 0 if they are floating-point numbers.
    """

    make: Callable[[], nn.Module]
    shapes: tuple[Shape, ...]
    dtype: torch.dtype = torch.float32
    integers: int = 0

    def inputs(self, batch: int | None = None) -> tuple[torch.Tensor, ...]:
        """Return inputs. Default for the batch size: the batch size of the case."""
        shapes = [(batch or shape[0], *shape[1:]) for shape in self.shapes]
        if self.integers:
            return tuple(torch.randint(self.integers, shape) for shape in shapes)
        return tuple(torch.randn(shape).to(self.dtype) for shape in shapes)

    def module(self) -> nn.Module:
        """Return the module in eval mode, in the dtype of the case."""
        return self.make().to(self.dtype).eval()


class Call(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


class Recurrent(nn.Module):
    """A recurrent layer, and a classifier of its output at the last step."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.LazyLinear(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.layer(x)
        return self.head(states[:, -1])


class Dense(nn.Module):
    """DenseNet's block and transition: each layer reads the concatenated outputs of all earlier layers."""

    def __init__(self, layers: int = 6, width: int = 24, growth: int = 12) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width + growth * i),
                nn.ReLU(),
                nn.Conv2d(width + growth * i, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth),
                nn.ReLU(),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(layers)
        )
        channels = width + growth * layers
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.transition = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels // 2, 1, bias=False),
            nn.AvgPool2d(2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [functional.max_pool2d(self.stem(x), 3, 2, 1)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return self.transition(torch.cat(features, 1))


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.skip(x))


class Inverted(nn.Module):
    """MobileNet's inverted residual with squeeze and excitation."""

    def __init__(self, width: int = 32, inner: int = 128) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU())
        self.depthwise = nn.Sequential(
            nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.SiLU()
        )
        self.squeeze = nn.Sequential(nn.Conv2d(inner, 8, 1), nn.SiLU(), nn.Conv2d(8, inner, 1), nn.Sigmoid())
        self.project = nn.Sequential(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.depthwise(self.expand(x))
        return x + self.project(hidden * self.squeeze(functional.adaptive_avg_pool2d(hidden, 1)))


class UNet(nn.Module):
    """One level of a U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.SiLU())
        self.down = nn.Conv2d(32, 64, 3, 2, 1)
        self.up = nn.ConvTranspose2d(64, 32, 2, 2)
        self.last = nn.Conv2d(64, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(torch.cat([x, self.up(functional.silu(self.down(x)))], 1))


class Routed(nn.Module):
    """A mixture of four experts. Each token uses the two experts with the largest weights."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.Parameter(torch.randn(4, width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        return torch.einsum(
            "bsk,bskd->bsd", weights, torch.einsum("bsi,bskio->bsko", x, self.experts[chosen])
        )


def attention(q: torch.Tensor) -> torch.Tensor:
    rows, width = q.shape[-2:]
    scores = q @ q.mT / width**0.5
    mask = torch.ones(rows, rows, dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ q


def _transformers(kind: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.for_model(kind, **settings)
        config.return_dict = False
        if hasattr(config, "use_cache"):
            config.use_cache = False
        return AutoModel.from_config(config)

    return make


_SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
}
_IMAGES = (4, 3, 64, 64)
_MAPS = (4, 32, 28, 28)
_BF16 = torch.bfloat16

CASES: Mapping[str, Case] = {
    # Recurrent.
    "lstm": Case(lambda: Recurrent(nn.LSTM(64, 128, batch_first=True)), ((8, 40, 64),)),
    "lstm, 2 layers, both ways": Case(
        lambda: Recurrent(nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True)), ((4, 30, 32),)
    ),
    "lstm, projected": Case(
        lambda: Recurrent(nn.LSTM(32, 64, batch_first=True, proj_size=16)), ((4, 30, 32),)
    ),
    "gru": Case(lambda: Recurrent(nn.GRU(64, 128, batch_first=True)), ((8, 40, 64),)),
    "gru, 2 layers, both ways": Case(
        lambda: Recurrent(nn.GRU(32, 64, 2, batch_first=True, bidirectional=True)), ((4, 30, 32),)
    ),
    "rnn": Case(lambda: Recurrent(nn.RNN(64, 128, batch_first=True)), ((8, 40, 64),)),
    "rnn, relu": Case(
        lambda: Recurrent(nn.RNN(64, 128, batch_first=True, nonlinearity="relu")), ((8, 40, 64),)
    ),
    "lstm, bfloat16": Case(lambda: Recurrent(nn.LSTM(64, 128, batch_first=True)), ((8, 40, 64),), _BF16),
    "lstm cell": Case(lambda: Call(lambda x: nn.LSTMCell(64, 64)(x)), ((16, 64),)),
    # Convolutions.
    "conv1d": Case(lambda: nn.Conv1d(32, 64, 3, padding=1), ((4, 32, 200),)),
    "conv2d": Case(lambda: nn.Conv2d(32, 64, 3, padding=1), (_MAPS,)),
    "conv2d, 7 channels": Case(lambda: nn.Conv2d(3, 7, 5), (_IMAGES,)),
    "conv2d, 24 channels": Case(lambda: nn.Conv2d(24, 40, 3, padding=1), ((4, 24, 28, 28),)),
    "conv2d, single pixels": Case(lambda: nn.Conv2d(32, 64, 1), (_MAPS,)),
    "conv2d, strided": Case(lambda: nn.Conv2d(32, 48, 3, 2, 1), (_MAPS,)),
    "conv2d, dilated": Case(lambda: nn.Conv2d(32, 32, 3, dilation=2), (_MAPS,)),
    "conv2d, 4 groups": Case(lambda: nn.Conv2d(32, 64, 3, groups=4), (_MAPS,)),
    "conv2d, depthwise": Case(lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), (_MAPS,)),
    "conv2d, channels last": Case(
        lambda: nn.Sequential(
            Call(lambda x: x.contiguous(memory_format=torch.channels_last)), nn.Conv2d(32, 64, 3)
        ),
        (_MAPS,),
    ),
    "conv2d, patches": Case(lambda: nn.Conv2d(3, 64, 16, 16), (_IMAGES,)),
    "conv3d": Case(lambda: nn.Conv3d(8, 16, 3, padding=1), ((2, 8, 10, 20, 20),)),
    "conv transpose 1d": Case(lambda: nn.ConvTranspose1d(32, 32, 4, 2, 1), ((4, 32, 100),)),
    "conv transpose 2d": Case(lambda: nn.ConvTranspose2d(32, 32, 4, 2, 1), (_MAPS,)),
    "conv transpose 3d": Case(lambda: nn.ConvTranspose3d(8, 8, 2, 2), ((2, 8, 6, 10, 10),)),
    "conv1d, bfloat16": Case(lambda: nn.Conv1d(32, 64, 3, padding=1), ((4, 32, 200),), _BF16),
    "conv2d, bfloat16": Case(lambda: nn.Conv2d(32, 64, 3, padding=1), (_MAPS,), _BF16),
    "conv2d, depthwise, bfloat16": Case(lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), (_MAPS,), _BF16),
    # Layers.
    "linear": Case(lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), ((64, 64),)),
    "linear, bfloat16": Case(
        lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), ((64, 64),), _BF16
    ),
    "bilinear": Case(lambda: nn.Bilinear(24, 32, 16), ((40, 24), (40, 32))),
    "embedding bag": Case(lambda: nn.EmbeddingBag(100, 32), ((40, 20),), integers=100),
    "layer norm": Case(lambda: nn.Sequential(nn.LayerNorm(64), nn.GELU()), ((16, 40, 64),)),
    "group norm": Case(lambda: nn.GroupNorm(4, 32), (_MAPS,)),
    "instance norm": Case(lambda: nn.InstanceNorm2d(32), (_MAPS,)),
    "local response norm": Case(lambda: nn.LocalResponseNorm(3), (_MAPS,)),
    "pooling": Case(
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3)), (_MAPS,)
    ),
    "pooling 3d": Case(lambda: nn.Sequential(nn.MaxPool3d(2), nn.AvgPool3d(2)), ((2, 8, 12, 20, 20),)),
    "fold": Case(lambda: nn.Sequential(nn.Unfold(3), nn.Fold((28, 28), 3)), (_MAPS,)),
    "upsampling": Case(lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (_MAPS,)),
    "grid sample": Case(
        lambda: Call(lambda x, g: functional.grid_sample(x, g.tanh(), align_corners=False)),
        (_MAPS, (4, 20, 20, 2)),
    ),
    "pixel shuffle": Case(lambda: nn.Sequential(nn.PixelShuffle(2), nn.ReflectionPad2d(2)), (_MAPS,)),
    # Functions.
    "cdist": Case(lambda: Call(lambda x, y: torch.cdist(x, y)), ((4, 50, 16), (4, 60, 16))),
    "cdist, few rows": Case(lambda: Call(lambda x, y: torch.cdist(x, y)), ((4, 20, 16), (4, 20, 16))),
    "cdist, 1-norm": Case(lambda: Call(lambda x, y: torch.cdist(x, y, p=1.0)), ((4, 50, 16), (4, 60, 16))),
    "sort and topk": Case(
        lambda: Call(lambda x: (x.sort(-1)[0].cumsum(-1), x.topk(8).indices)), ((16, 400),)
    ),
    "median and quantile": Case(lambda: Call(lambda x: (x.median(-1)[0], x.quantile(0.9, -1))), ((16, 400),)),
    "fft": Case(lambda: Call(lambda x: torch.fft.irfft2(torch.fft.rfft2(x).abs() + 0j)), (_MAPS,)),
    "stft": Case(
        lambda: Call(lambda x: torch.stft(x, 64, window=torch.ones(64), return_complex=True).abs()),
        ((4, 1600),),
    ),
    "einsum": Case(
        lambda: Call(lambda x, y: torch.einsum("bij,bkj,bkl->bil", x, y, y)), ((4, 40, 30), (4, 50, 30))
    ),
    "linear algebra": Case(
        lambda: Call(lambda x: torch.linalg.solve(x @ x.mT + torch.eye(24), x)), ((8, 24, 24),)
    ),
    "norms": Case(
        lambda: Call(lambda x: (x.norm(dim=-1), x.std(-1), x.logsumexp(-1), functional.normalize(x))),
        ((16, 400),),
    ),
    "scatter": Case(
        lambda: Call(lambda x: x.new_zeros(x.shape[0], 32).scatter_add(1, x.argsort(-1) % 32, x).log1p()),
        ((4, 400),),
    ),
    "masks and dtypes": Case(
        lambda: Call(lambda x: (x * (x > 0) + x.double()).cumsum(-1, dtype=torch.float32)), ((16, 400),)
    ),
    "integers": Case(lambda: Call(lambda x: (x / 3).sqrt() * x), ((16, 40),), integers=50),
    # Attention.
    "attention": Case(lambda: Call(attention), ((4, 4, 64, 16),)),
    "attention, fused": Case(
        lambda: Call(lambda q: functional.scaled_dot_product_attention(q, q, q, is_causal=True)),
        ((4, 4, 64, 16),),
    ),
    "attention, fused, bfloat16": Case(
        lambda: Call(lambda q: functional.scaled_dot_product_attention(q, q, q)), ((4, 4, 64, 16),), _BF16
    ),
    "multi-head attention": Case(
        lambda: Call(lambda x: nn.MultiheadAttention(64, 4, batch_first=True).eval()(x, x, x)[0]),
        ((4, 40, 64),),
    ),
    "transformer encoder": Case(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2, enable_nested_tensor=False
        ),
        ((4, 40, 64),),
    ),
    "transformer decoder": Case(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(64, 4, 128, batch_first=True), 2),
        ((4, 40, 64), (4, 30, 64)),
    ),
    "experts": Case(Routed, ((4, 16, 64),)),
    # Blocks.
    "densenet block": Case(Dense, (_IMAGES,)),
    "resnet": Case(
        lambda: nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3), Residual(32, 32), Residual(32, 64, 2)), (_IMAGES,)
    ),
    "mobilenet block": Case(Inverted, (_MAPS,)),
    "u-net": Case(UNet, (_IMAGES,)),
    # Transformers.
    "bert": Case(_transformers("bert", **_SMALL), ((4, 40),), integers=256),
    "llama": Case(_transformers("llama", **_SMALL), ((4, 40),), integers=256),
    "llama, bfloat16": Case(_transformers("llama", **_SMALL), ((4, 40),), _BF16, integers=256),
    "gpt2": Case(
        _transformers("gpt2", n_embd=64, n_layer=2, n_head=4, vocab_size=256), ((4, 40),), integers=256
    ),
    "vit": Case(_transformers("vit", **{**_SMALL, "image_size": 64, "patch_size": 16}), (_IMAGES,)),
}
