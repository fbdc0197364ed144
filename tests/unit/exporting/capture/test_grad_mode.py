"""FE914: the model computes something different in the grad mode that the trace does not have."""

import torch
from torch import nn

import fakexport as fe

X = torch.ones(2, 4)


class Asks(nn.Module):
    def forward(self, x):
        return x * 2 if torch.is_grad_enabled() else x * 3


class Indirect(nn.Module):
    """The answer is used in another function."""

    def forward(self, x):
        return scaled(x, torch.is_grad_enabled())


def scaled(x, is_training):
    return x.relu() if is_training else x


class Chooses(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return x * 2 if torch.is_grad_enabled() else x * 3


class Checkpoints(nn.Module):
    """Asks, as many models do, but computes the same; also with state and conversions."""

    def __init__(self):
        super().__init__()
        self.checkpoints = False
        self.fc = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        self.steps += 1
        y = self.fc(x).contiguous().to(torch.float32)
        if torch.is_grad_enabled() and self.checkpoints:
            y = y * 2
        return y + self.fc.weight.t().contiguous().sum() + self.steps


def codes(module):
    return [each.code for each in fe.check(lambda: (module().eval(), (X,))).diagnostics]


def test_a_branch_on_the_grad_mode_is_a_warning():
    assert codes(Asks) == ["FE914"]
    assert codes(Indirect) == ["FE914"]


def test_a_model_that_chooses_its_mode_computes_what_eager_does():
    assert codes(Chooses) == []
    program = fe.export(lambda: (Chooses(), (X,)))
    assert torch.equal(fe.run(program, X)["output"], Chooses()(X))


def test_asking_without_consequences_is_no_finding():
    assert codes(Checkpoints) == []


def test_a_trace_without_gradients_repeats_that_branch():
    with torch.no_grad():
        program = fe.export(lambda: (Asks(), (X,)))

    assert torch.equal(fe.run(program, X)["output"], X * 3)
