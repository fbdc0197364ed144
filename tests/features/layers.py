"""Features of `torch.nn`: layers, containers and losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .feature import Made, feature, ramp, register

register(
    linear=lambda: (nn.Linear(4, 3), (ramp(2, 4),)),
    conv3d_same=lambda: (nn.Conv3d(2, 2, 3, padding="same"), (ramp(2, 2, 4, 4, 4),)),
    batch_norm_eval=lambda: (nn.BatchNorm2d(3).eval(), (ramp(2, 3, 4, 4),)),
    batch_norm_train=lambda: (nn.BatchNorm2d(3).train(), (ramp(2, 3, 4, 4),)),
    sync_batch_norm_eval=lambda: (nn.SyncBatchNorm(3).eval(), (ramp(2, 3, 4, 4),)),
    instance_norm_tracking=lambda: (
        nn.InstanceNorm2d(3, affine=True, track_running_stats=True).train(),
        (ramp(2, 3, 4, 4),),
    ),
    group_layer_rms_norm=lambda: (
        nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(8), nn.RMSNorm(8), nn.LocalResponseNorm(2)),
        (ramp(2, 4, 8),),
    ),
    embedding_max_norm=lambda: (nn.Embedding(10, 4, max_norm=1.0), (torch.tensor([[0, 1, 2], [3, 9, 0]]),)),
    embedding_bag=lambda: (nn.EmbeddingBag(10, 4, mode="mean"), (torch.tensor([[0, 1, 2], [3, 9, 0]]),)),
    lstm_projection_bidirectional=lambda: (
        nn.LSTM(4, 5, proj_size=3, bidirectional=True).eval(),
        (ramp(3, 2, 4),),
    ),
    data_parallel=lambda: (nn.DataParallel(nn.Linear(4, 3)), (ramp(2, 4),)),
)


@feature
def max_pool_and_unpool() -> Made:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.MaxPool2d(2, return_indices=True)
            self.unpool = nn.MaxUnpool2d(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.unpool(*self.pool(x))

    return Pool(), (ramp(2, 3, 4, 4),)


@feature
def packed_sequence() -> Made:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5, batch_first=True).eval()
            self.lengths = torch.tensor([3, 2])

        def forward(self, x: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, self.lengths, batch_first=True)
            padded, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
            return padded

    return Packed(), (ramp(2, 3, 4),)


@feature
def transformer_encoder_eval() -> Made:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval(), (ramp(2, 3, 8),)


@feature
def transformer_encoder_train() -> Made:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(), (ramp(2, 3, 8),)


@feature
def multihead_attention_mask() -> Made:
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
            self.register_buffer("mask", torch.ones(3, 3).triu(1).bool(), persistent=False)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.attention(x, x, x, attn_mask=self.mask)

    return Attend(), (ramp(2, 3, 8),)


@feature
def losses() -> Made:
    class Losses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 5)
            self.cross_entropy = nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.arange(1.0, 6.0))
            self.huber = nn.HuberLoss()

        def forward(self, x: Tensor) -> Tensor:
            logits = self.linear(x)
            target = torch.arange(x.size(0), device=x.device)
            return self.cross_entropy(logits, target) + self.huber(logits, logits.tanh())

    return Losses(), (ramp(3, 4),)


@feature
def ctc_loss() -> Made:
    class Aligned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            target = torch.tensor([[1, 2], [3, 4]], device=x.device)
            return nn.functional.ctc_loss(self.linear(x).log_softmax(-1), target, (6, 6), (2, 2))

    return Aligned(), (ramp(6, 2, 4),)


@feature
def containers() -> Made:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
            self.named = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
            self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.full((4,), 2.0))])
            self.shifts = nn.ParameterDict({"a": nn.Parameter(torch.zeros(4))})

        def forward(self, x: Tensor) -> Tensor:
            for layer, activation, scale in zip(self.layers, self.named.values(), self.scales, strict=True):
                x = activation(layer(x)) * scale
            return x + self.shifts["a"]

    return Held(), (ramp(2, 4),)


@feature
def lazy_layers() -> Made:
    module = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(2))
    x = ramp(2, 3, 8)
    module(x)
    return module.eval(), (x,)


@feature
def tied_weights() -> Made:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embedding(x))

    return Tied(), (torch.tensor([[0, 1, 5]]),)
