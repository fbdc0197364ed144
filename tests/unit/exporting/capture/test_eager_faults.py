"""A model that eager mode cannot run either is not charged to the trace."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

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
        if isinstance(x, FakeTensor):
            raise NotImplementedError("could not find kernel at DispatchKey.CUDA")
        return x @ self.weight.T


@pytest.mark.parametrize(
    ("model", "is_eager_fault"), [(Mismatched, True), (Untraceable, False), (OfFakes, False)]
)
def test_an_error_of_forward_says_whether_eager_mode_raises_it(model, is_eager_fault):
    report = fe.check(lambda: (model(), (torch.randn(2, 3),)), target=["cpu"])

    (found,) = report.diagnostics
    assert found.code == "FE202"
    assert found.notes[0].startswith("eager mode raises the same error: ") == is_eager_fault
    with pytest.raises(RuntimeError) if is_eager_fault else torch.no_grad():
        model()(torch.randn(2, 3))


@pytest.mark.parametrize(
    "step",
    [
        lambda x: torch.cuda.FloatTensor(3).fill_(1) * x,
        lambda x: torch.ones(3, device="cpu").pin_memory().to(x.device) * x,
        lambda x: x * torch.rand(3, device=x.device, generator=torch.Generator("cuda")),
    ],
)
def test_an_error_of_this_build_of_torch_is_not_one_of_eager_mode(step):
    class Steps(Mismatched):
        def forward(self, x):
            return step(x)

    report = fe.check(lambda: (Steps(), (torch.randn(2, 3),)), target="H100")

    assert report.diagnostics[0].code == "FE202"
    assert "eager mode raises the same error" not in str(report)


class OneSample(nn.Module):
    """Names a batch, and takes one sample."""

    def forward(self, x):
        return x.reshape(1, x.shape[1]) + 1


def test_a_model_of_one_sample_is_given_one():
    report = fe.check(lambda: (OneSample(), (), {"x": torch.randn(2, 3)}), target=["cpu"])

    (found,) = report.diagnostics
    assert found.fix.message.endswith("pass --input 'x=float32[1,3]'")
    given = fe.check(lambda: (OneSample(), (), {"x": torch.randn(1, 3)}), target=["cpu"])
    assert given.is_clean


def test_a_model_that_fails_with_one_sample_too_is_not_given_one():
    report = fe.check(lambda: (Mismatched(), (), {"x": torch.randn(2, 3)}), target=["cpu"])

    (found,) = report.diagnostics
    assert "--input" not in found.fix.message.partition("no fix is known")[0]


class Settings:
    top = None
    bottom = 1


class OfSettings(nn.Module):
    """Reads one setting that is empty and one that is not."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.top_k = config.top
        self.dim = config.bottom

    def forward(self, x):
        return torch.topk(x, k=self.top_k, dim=self.dim)


class OfConfig(OfSettings):
    def forward(self, x):
        return x * torch.tensor(self.config.top, device=x.device)


@pytest.mark.parametrize("model", [OfSettings, OfConfig])
def test_a_setting_that_is_empty_is_named(model):
    report = fe.check(lambda: (model(Settings()), (torch.randn(2, 3),)), target=["cpu"])

    (found,) = report.diagnostics
    assert found.fix.message == "set `top` in the config: it is None"


class OfInput(OfSettings):
    """The value that is missing is not a setting."""

    def forward(self, x, y=None):
        return torch.topk(y, k=self.dim)


def test_no_setting_is_named_where_another_value_is_missing():
    report = fe.check(lambda: (OfInput(Settings()), (torch.randn(2, 3),)), target=["cpu"])

    (found,) = report.diagnostics
    assert "in the config" not in found.fix.message.partition("no fix is known")[0]


class Indexing(nn.Module):
    """Reads the values of tensors for an index, which a list of them hides."""

    def forward(self, x, rows):
        x = x.clone()
        x[tuple(rows), tuple(rows)] = 0
        return x


@pytest.mark.parametrize("target", ["cpu", "H100"])
def test_tensors_in_a_list_as_an_index_are_read(target):
    factory = lambda: (Indexing(), (torch.randn(4, 4), torch.tensor([0, 1])))  # noqa: E731

    (found,) = fe.check(factory, target=[target]).diagnostics

    assert (found.code, found.primary.span.line) == ("FE203", Indexing.forward.__code__.co_firstlineno + 2)
