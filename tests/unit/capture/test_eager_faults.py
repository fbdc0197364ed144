"""A model that eager mode cannot run either is not charged to the trace."""

import pytest
import torch
from torch import nn

import fakexport as fe


class Mismatched(nn.Module):
    """Fails at its second line, in every mode."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3))

    def forward(self, x):
        return x @ self.weight


class Untraceable(Mismatched):
    """Fails at the same line with the same error, and in a trace alone."""

    def forward(self, x):
        weight = self.weight if torch.compiler.is_exporting() else self.weight.T
        return x @ weight


class OfFakes(Mismatched):
    """Raises at the same line in every mode what a fake without data raises, and real tensors do not."""

    def forward(self, x):
        if isinstance(x, torch.Tensor) and type(x) is not torch.Tensor:
            raise NotImplementedError("could not find kernel at DispatchKey.CUDA")
        return x @ self.weight.T


@pytest.mark.parametrize(
    ("model", "is_eager_fault"), [(Mismatched, True), (Untraceable, False), (OfFakes, False)]
)
def test_an_error_of_forward_says_whether_eager_mode_raises_it(model, is_eager_fault):
    report = fe.check(lambda: (model(), (torch.randn(2, 3),)), target=["cpu"])

    (found,) = report.diagnostics
    assert found.code == "FE202"
    assert found.notes[0].startswith("eager mode raises it too: ") == is_eager_fault
    with pytest.raises(RuntimeError) if is_eager_fault else torch.no_grad():
        model()(torch.randn(2, 3))
