"""`bind` takes what the model's own `load_state_dict` takes, or warns of the hook that it leaves out."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import weight_norm as old_weight_norm

import fakexport as fe

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Renamed(nn.Module):
    """Takes an older name of its weight."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_load_state_dict_pre_hook(self.rename)

    @staticmethod
    def rename(module, state_dict, prefix, *args):
        if f"{prefix}fc.weight" in state_dict:
            state_dict[f"{prefix}linear.weight"] = state_dict.pop(f"{prefix}fc.weight")
            state_dict[f"{prefix}linear.bias"] = state_dict.pop(f"{prefix}fc.bias")

    def forward(self, x):
        return self.linear(x)


class Prefixed(nn.Module):
    """Saves its weights without a prefix, and puts it back."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_state_dict_post_hook(self.without)
        self._register_load_state_dict_pre_hook(self.with_prefix)

    @staticmethod
    def without(module, state_dict, prefix, metadata):
        for name in list(state_dict):
            state_dict[name.replace("inner.", "")] = state_dict.pop(name)

    def with_prefix(self, state_dict, prefix, *args):
        for name in ("weight", "bias"):
            state_dict[f"{prefix}inner.{name}"] = state_dict.pop(f"{prefix}{name}")

    def forward(self, x):
        return self.inner(x)


class OwnMethod(nn.Module):
    """Renames in a method of its own."""

    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(4))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        if prefix + "alpha" in state_dict:
            state_dict[prefix + "gamma"] = state_dict.pop(prefix + "alpha")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, x):
        return x * self.gamma


class Nested(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(4, 4), kind(), kind())

    def forward(self, x):
        return self.parts(x)


def weight_normed(norm):
    return nn.Sequential(norm(nn.Linear(4, 4)), nn.ReLU(), norm(nn.Linear(4, 4)))


def older(kind, **names):
    """Return a state dict under older names."""
    state = {name: torch.randn_like(value) for name, value in kind().state_dict().items()}
    for new, old in names.items():
        state = {name.replace(new.replace("__", "."), old): value for name, value in state.items()}
    return state


CASES = {
    "weight norm of older checkpoints": (
        lambda: weight_normed(parametrizations.weight_norm),
        lambda: {
            name: torch.randn_like(value)
            for name, value in weight_normed(old_weight_norm).state_dict().items()
        },
    ),
    "weight norm of its own": (
        lambda: weight_normed(parametrizations.weight_norm),
        lambda: older(lambda: weight_normed(parametrizations.weight_norm)),
    ),
    "an older name": (Renamed, lambda: older(Renamed, linear="fc")),
    "its own name": (Renamed, lambda: older(Renamed)),
    "a prefix that is not saved": (Prefixed, lambda: older(Prefixed)),
    "a method of its own": (OwnMethod, lambda: older(OwnMethod, gamma="alpha")),
    "in submodules": (
        lambda: Nested(Renamed),
        lambda: older(lambda: Nested(Renamed), linear="fc"),
    ),
    "methods of submodules": (
        lambda: Nested(OwnMethod),
        lambda: older(lambda: Nested(OwnMethod), gamma="alpha"),
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["program", "archive"])
def test_bind_takes_what_load_state_dict_takes(case, way, tmp_path):
    make, checkpoint = CASES[case]
    torch.manual_seed(0)
    state = checkpoint()
    eager = make()
    eager.load_state_dict(dict(state))
    program = fe.export(make, (X,))
    if way == "archive":
        fe.save(program, tmp_path / "model.pt2")
        program = fe.load(tmp_path / "model.pt2")

    bound = fe.bind(program, state)

    assert torch.equal(bound.module()(X), eager(X))


class Scales(nn.Module):
    """Holds twice what it saves."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self._register_load_state_dict_pre_hook(self.scale)

    def scale(self, state_dict, prefix, *args):
        state_dict[prefix + "weight"] = state_dict[prefix + "weight"] * 2

    def forward(self, x):
        return x * self.weight


class ScalesInPlace(Scales):
    def scale(self, state_dict, prefix, *args):
        state_dict[prefix + "weight"].mul_(2)


class Exchanges(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
        self._register_load_state_dict_pre_hook(self.exchange)

    def exchange(self, state_dict, prefix, *args):
        a, b = state_dict[prefix + "a"], state_dict[prefix + "b"]
        state_dict[prefix + "a"], state_dict[prefix + "b"] = b, a

    def forward(self, x):
        return x * self.a + self.b


class Normalizes(nn.Module):
    """Changes its weight after it was loaded."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_load_state_dict_post_hook(self.normalize)

    @staticmethod
    def normalize(module, keys):
        module.weight.data /= module.weight.data.norm()

    def forward(self, x):
        return x * self.weight


class ExtraState(nn.Module):
    """Saves a number next to its weights."""

    def __init__(self):
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.ones(4)), 2

    def get_extra_state(self):
        return torch.tensor(self.factor)

    def set_extra_state(self, state):
        self.factor = int(state)

    def forward(self, x):
        return x * self.weight * self.factor


class PassesOn(nn.Module):
    """Leaves the state dict as it is, and passes a changed copy to torch's method."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def _load_from_state_dict(self, state_dict, prefix, *args):
        changed = {**state_dict, prefix + "weight": state_dict[prefix + "weight"] * 2}
        super()._load_from_state_dict(changed, prefix, *args)

    def forward(self, x):
        return x * self.weight


class Copies(PassesOn):
    """Does not call torch's method."""

    def _load_from_state_dict(self, state_dict, prefix, *args):
        self.weight.data.copy_(state_dict[prefix + "weight"] * 2)


COMPUTING = {
    Scales: "scale", ScalesInPlace: "scale", Exchanges: "exchange", Normalizes: "normalize",
    ExtraState: "set_extra_state", PassesOn: "_load_from_state_dict", Copies: "_load_from_state_dict",
}  # fmt: skip


@pytest.mark.parametrize("kind", COMPUTING)
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("way", ["program", "archive"])
def test_a_hook_that_computes_is_a_warning_with_its_module(kind, is_nested, way, tmp_path):
    def make():
        return nn.Sequential(nn.Linear(4, 4), kind()) if is_nested else kind()

    program = fe.export(make, (X,))
    if way == "archive":
        fe.save(program, tmp_path / "model.pt2")
        program = fe.load(tmp_path / "model.pt2")
    state = {name: value for name, value in make().state_dict().items() if "_extra_state" not in name}

    with pytest.warns(fe.WeightsWarning) as told:
        fe.bind(program, state)

    assert f"`{COMPUTING[kind]}` of {'1' if is_nested else 'the model'}" in str(told[0].message)


@pytest.mark.parametrize(
    "make", [lambda: nn.GroupNorm(2, 4), lambda: nn.Sequential(nn.BatchNorm1d(4)).eval()]
)
def test_modules_of_torch_are_no_warning(make):
    program = fe.export(make, (X,))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fe.bind(program, make().state_dict())


def test_the_hooks_leave_the_model_as_it_was():
    class Resizes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.loads = nn.Parameter(torch.ones(4)), 0
            self._register_load_state_dict_pre_hook(self.resize)

        def resize(self, state_dict, prefix, *args):
            self.loads += 1
            self.weight = nn.Parameter(torch.empty(state_dict.get("other", torch.ones(9)).shape))

        def forward(self, x):
            return x * self.weight

    model = Resizes()
    weight = model.weight

    fe.export(model, (X,))

    assert model.weight is weight
    assert model.loads == 0
