"""FE914: the model computes something different in the grad mode that the trace does not have."""

import pytest
import torch
from torch import is_grad_enabled as has_gradients
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

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


class AsksByAnotherName(nn.Module):
    def forward(self, x):
        return x * 2 if has_gradients() else x * 3


class AsksTheBinding(nn.Module):
    def forward(self, x):
        return x * 2 if torch._C.is_grad_enabled() else x * 3


class AsksAValue(nn.Module):
    """A value that is computed from weights needs gradients only where they are enabled."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        return y * 2 if y.requires_grad else y * 3


class AsksWithState(AsksAValue):
    """Is called three times, because it changes an attribute."""

    def forward(self, x):
        self.last_rows = len(x)
        return super().forward(x)


class Differentiates(nn.Module):
    def forward(self, x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad((x * x).sum(), x)[0]


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


class Encodes(nn.Module):
    """torch runs a fused kernel where gradients are disabled."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        y = self.encoder(x[None])
        return self.attention(y, y, y)[0]


class Attends(nn.Module):
    """torch returns more values from its kernel where gradients are enabled."""

    def forward(self, x):
        x = x.reshape(1, 1, 2, 4)
        return flex_attention(x, x, x)


class Recomputes(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.fc, x, use_reentrant=False)


def codes(module):
    return [each.code for each in fe.check(lambda: (module().eval(), (X,))).diagnostics]


@pytest.mark.parametrize("module", [Asks, Indirect, AsksByAnotherName, AsksTheBinding, AsksAValue])
def test_a_branch_on_the_grad_mode_is_a_warning(module):
    assert codes(module) == ["FE914"]


def test_a_model_with_state_is_called_in_both_modes():
    assert codes(AsksWithState) == ["FE903", "FE914"]


def test_a_hook_of_a_layer_is_called_in_both_modes():
    def factory():
        layer = nn.Linear(4, 4)
        layer.register_forward_hook(lambda module, args, y: y * 2 if torch.is_grad_enabled() else y)
        return nn.Sequential(layer), (X,)

    assert [each.code for each in fe.check(factory).diagnostics] == ["FE914"]


def test_an_error_in_the_other_mode_is_printed():
    (found,) = fe.check(lambda: (Differentiates(), (X,))).diagnostics

    assert found.notes[0].startswith("in the other grad mode, `forward` raises RuntimeError: ")


@pytest.mark.chosen
@pytest.mark.parametrize("module", [Encodes, Attends, Recomputes])
def test_what_torch_does_differently_without_gradients_is_no_finding(module):
    assert codes(module) == []


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
