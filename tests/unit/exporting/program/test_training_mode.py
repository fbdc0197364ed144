"""Operators in training mode, told from their arguments."""

import pytest
import torch
from torch import nn

from fakexport.exporting.capture import export
from fakexport.exporting.program import training_operators, walk

# torch takes the parameters that an LSTM lists for attributes that are assigned.
pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned:UserWarning")


class Attention(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.25)


class Rrelu(nn.Module):
    def forward(self, x):
        return torch.rrelu(x, training=True)


def found(module):
    program = export(lambda: (module(), (torch.zeros(2, 3, 4),)))
    return [(op.operator, argument, op.module_path) for op, argument in training_operators(walk(program))]


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (lambda: nn.Dropout(0.5), [("aten.dropout.default", "train=True", "")]),
        (lambda: nn.Dropout1d(0.5), [("aten.feature_dropout.default", "train=True", "")]),
        (lambda: nn.AlphaDropout(0.5), [("aten.alpha_dropout.default", "train=True", "")]),
        (lambda: nn.Sequential(nn.BatchNorm1d(3)), [("aten.batch_norm.default", "training=True", "0")]),
        (lambda: nn.LSTM(4, 4, num_layers=2, dropout=0.1), [("aten.lstm.input", "train=True", "")]),
        (Rrelu, [("aten.rrelu.default", "training=True", "")]),
        (Attention, [("aten.scaled_dot_product_attention.default", "dropout_p=0.25", "")]),
    ],
)
def test_what_runs_as_in_training(module, expected):
    assert found(module) == expected


@pytest.mark.parametrize(
    "module",
    [
        lambda: nn.Dropout(0.5).eval(),
        lambda: nn.Dropout(0.0),
        lambda: nn.BatchNorm1d(3).eval(),
        lambda: nn.BatchNorm1d(3, track_running_stats=False),
        lambda: nn.LSTM(4, 4),
        lambda: nn.Linear(4, 4),
    ],
)
def test_what_computes_the_same_in_both_modes(module):
    assert found(module) == []
