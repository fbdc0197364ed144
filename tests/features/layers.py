"""Features of `torch.nn`: layers, containers and losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .feature import Calling, Made, Weighted, feature, ramp


@feature
def linear() -> Made:
    return nn.Linear(4, 3), (ramp(2, 4),)


@feature
def bilinear() -> Made:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bilinear = nn.Bilinear(4, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.bilinear(x, x.flip(0))

    return Pair(), (ramp(2, 4),)


@feature
def conv1d_reflect() -> Made:
    return nn.Conv1d(3, 4, 3, padding=1, padding_mode="reflect"), (ramp(2, 3, 8),)


@feature
def conv2d_circular_groups() -> Made:
    return nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", groups=2), (ramp(2, 4, 8, 8),)


@feature
def conv3d_same() -> Made:
    return nn.Conv3d(2, 2, 3, padding="same"), (ramp(2, 2, 4, 4, 4),)


@feature
def conv_transpose2d() -> Made:
    return nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), (ramp(2, 3, 4, 4),)


@feature
def batch_norm_eval() -> Made:
    return nn.BatchNorm2d(3).eval(), (ramp(2, 3, 4, 4),)


@feature
def batch_norm_train() -> Made:
    return nn.BatchNorm2d(3).train(), (ramp(2, 3, 4, 4),)


@feature
def sync_batch_norm_eval() -> Made:
    return nn.SyncBatchNorm(3).eval(), (ramp(2, 3, 4, 4),)


@feature
def instance_norm_tracking() -> Made:
    return nn.InstanceNorm2d(3, affine=True, track_running_stats=True).train(), (ramp(2, 3, 4, 4),)


@feature
def group_layer_rms_norm() -> Made:
    return (
        nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(8), nn.RMSNorm(8), nn.LocalResponseNorm(2)),
        (ramp(2, 4, 8),),
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
def adaptive_and_lp_pool() -> Made:
    return nn.Sequential(nn.LPPool2d(2, 2), nn.AdaptiveAvgPool2d((2, 3))), (ramp(2, 3, 8, 8).abs(),)


@feature
def fractional_max_pool() -> Made:
    return nn.FractionalMaxPool2d(2, output_size=(2, 2)), (ramp(2, 3, 8, 8),)


@feature
def embedding_padding() -> Made:
    return nn.Embedding(10, 4, padding_idx=0), (torch.tensor([[0, 1, 2], [3, 9, 0]]),)


@feature
def embedding_max_norm() -> Made:
    return nn.Embedding(10, 4, max_norm=1.0), (torch.tensor([[0, 1, 2], [3, 9, 0]]),)


@feature
def embedding_bag() -> Made:
    return nn.EmbeddingBag(10, 4, mode="mean"), (torch.tensor([[0, 1, 2], [3, 9, 0]]),)


@feature
def pixel_shuffle_and_upsample() -> Made:
    return (
        nn.Sequential(
            nn.PixelShuffle(2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.ZeroPad2d(1),
            nn.ChannelShuffle(1),
        ),
        (ramp(2, 4, 4, 4),),
    )


@feature
def fold_and_unfold() -> Made:
    return nn.Sequential(nn.Unfold(2, stride=2), nn.Fold((4, 4), 2, stride=2)), (ramp(2, 3, 4, 4),)


@feature
def lstm_eval() -> Made:
    return nn.LSTM(4, 5, num_layers=2, batch_first=True, dropout=0.1).eval(), (ramp(2, 3, 4),)


@feature
def lstm_projection_bidirectional() -> Made:
    return nn.LSTM(4, 5, proj_size=3, bidirectional=True).eval(), (ramp(3, 2, 4),)


@feature
def gru_eval() -> Made:
    return nn.GRU(4, 5, batch_first=True).eval(), (ramp(2, 3, 4),)


@feature
def gru_train() -> Made:
    return nn.GRU(4, 5, batch_first=True).train(), (ramp(2, 3, 4),)


@feature
def rnn_relu() -> Made:
    return nn.RNN(4, 5, nonlinearity="relu", num_layers=2).eval(), (ramp(3, 2, 4),)


@feature
def rnn_cells() -> Made:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.lstm = nn.RNNCell(4, 4), nn.LSTMCell(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden, cell = self.lstm(self.rnn(x))
            return hidden + cell

    return Cells(), (ramp(2, 4),)


@feature
def gru_cell() -> Made:
    return nn.GRUCell(4, 4), (ramp(2, 4),)


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
def transformer_decoder() -> Made:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True).eval()

        def forward(self, x: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device)
            return self.layer(x, x * 2, tgt_mask=mask)

    return Decoder(), (ramp(2, 3, 8),)


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
def adaptive_log_softmax() -> Made:
    class Softmax(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3, 6])

        def forward(self, x: Tensor) -> Tensor:
            return self.loss.log_prob(x)

    return Softmax(), (ramp(2, 4),)


@feature
def activations() -> Made:
    names = (
        "PReLU",
        "GELU",
        "SiLU",
        "Mish",
        "Hardswish",
        "Softplus",
        "ELU",
        "CELU",
        "LogSigmoid",
        "Tanhshrink",
    )
    return nn.Sequential(*(getattr(nn, name)() for name in names), nn.GLU()), (ramp(2, 4),)


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


@feature
def distances() -> Made:
    def measured(x: Tensor) -> Tensor:
        return torch.cdist(x, x) + nn.CosineSimilarity()(x, x.roll(1, 0)) + nn.PairwiseDistance()(x, x * 2)

    return Weighted(measured), (ramp(3, 4),)


@feature
def interpolate_and_grid_sample() -> Made:
    def sampled(x: Tensor) -> Tensor:
        theta = torch.eye(2, 3, device=x.device).expand(x.size(0), 2, 3)
        grid = nn.functional.affine_grid(theta, list(x.shape), align_corners=False)
        larger = nn.functional.interpolate(x, scale_factor=1.5, mode="bicubic")
        return nn.functional.grid_sample(x, grid, align_corners=False).sum() + larger

    return Calling(sampled), (ramp(2, 3, 4, 4),)


@feature
def data_parallel() -> Made:
    return nn.DataParallel(nn.Linear(4, 3)), (ramp(2, 4),)
