"""What `materialize_module` and `materialize_tensor` promise, and what they refuse."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import (
    MaterializeError,
    deferred_init,
    fake_mode,
    is_deferred,
    is_fake,
    materialize_module,
    materialize_tensor,
)
from tests.equality import assert_same_module


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def test_the_same_fake_gives_the_same_tensor_and_what_is_real_stays() -> None:
    real_before = nn.Parameter(torch.ones(2))

    def factory() -> nn.Module:
        module = Tied()
        module.real = real_before
        return module

    module = deferred_init(factory)
    fake = module.embed.weight
    real = materialize_tensor(fake)
    assert materialize_tensor(fake) is materialize_tensor(real) is real
    materialize_module(module)
    assert module.embed.weight is module.head.weight is real
    assert module.real is real_before
    assert is_fake(fake)


def test_views_share_memory_whichever_comes_first() -> None:
    def factory() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        flat = torch.randn(12)
        return flat, flat[:6].view(2, 3).t(), flat.detach()[6:]

    for order in ((0, 1, 2), (2, 0, 1)):
        made = deferred_init(factory)
        real = {index: materialize_tensor(made[index]) for index in order}
        real[0].fill_(3.0)
        assert real[1].tolist() == [[3.0, 3.0]] * 3
        assert real[1].stride() == (1, 3)
        assert real[2].tolist() == [3.0] * 6


def test_submodules_are_materialised_one_by_one() -> None:
    model = deferred_init(mlp)
    gone = weakref.ref(model[0].weight)
    materialize_module(model[0])
    assert gone() is None
    assert [is_deferred(part) for part in model] == [False, True, True]


def test_buffers_only_leaves_the_parameters() -> None:
    model = deferred_init(mlp)
    materialize_module(model, True)
    assert all(is_fake(p) for p in model.parameters())
    assert not any(is_fake(b) for b in model.buffers())


def test_check_fn_is_asked_for_every_module() -> None:
    asked = []

    def is_linear(module: nn.Module) -> bool:
        asked.append(type(module).__name__)
        return isinstance(module, nn.Linear)

    model = deferred_init(mlp)
    materialize_module(model, check_fn=is_linear)
    assert asked == ["Sequential", "Linear", "BatchNorm1d", "Linear"]
    assert [is_deferred(part) for part in model] == [False, True, False]


@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_device_says_where(device: torch.device) -> None:
    model = deferred_init(mlp)
    materialize_module(model, device=device)
    assert {t.device.type for t in model.state_dict().values()} == {"meta"}
    assert isinstance(model[0].weight, nn.Parameter)


@pytest.mark.parametrize("cut", [slice(1, 3), (slice(None), slice(0, 2))])
def test_a_shard_is_the_slice_of_the_whole(cut) -> None:
    seen = {}

    def shard_fn(name: str, tensor: torch.Tensor):
        seen[name] = (is_fake(tensor), tuple(tensor.shape))
        return cut if tensor.dim() == 2 else None

    torch.manual_seed(0)
    eager = mlp()
    torch.manual_seed(0)
    model = deferred_init(mlp)
    materialize_module(model, shard_fn=shard_fn)
    assert seen["2.weight"] == (True, (2, 6))
    for name, tensor in model.state_dict().items():
        whole = eager.state_dict()[name]
        assert torch.equal(tensor, whole[cut] if whole.dim() == 2 else whole), name
        assert tensor.is_contiguous()
    assert model[0].weight.untyped_storage().nbytes() == 4 * model[0].weight.numel()
    assert model[0].weight.requires_grad


class Tied(nn.Module):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def test_a_tied_parameter_stays_tied_when_cut_and_different_cuts_are_refused() -> None:
    model = deferred_init(Tied)
    with pytest.raises(
        MaterializeError, match=r"head.weight cannot be .*: it is the same tensor as embed.weight"
    ):
        materialize_module(model, shard_fn=lambda name, t: slice(0, 2) if "head" in name else None)
    assert is_deferred(model)
    materialize_module(model, shard_fn=lambda name, t: slice(0, 2))
    assert model.head.weight is model.embed.weight
    assert model.head.weight.shape == (2, 3)


def test_cuts_of_shared_memory_are_refused() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.ones(6)
            self.register_buffer("low", flat[:3])
            self.register_buffer("high", flat[3:])

    model = deferred_init(Views)
    with pytest.raises(MaterializeError, match="high cannot be materialized: it shares memory with low"):
        materialize_module(model, shard_fn=lambda name, t: slice(0, 1))


# What cannot be materialised.


def refused(model: nn.Module, message: str) -> None:
    """Asserts that the module is refused and that nothing of it changed."""
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    with pytest.raises(MaterializeError, match=message):
        materialize_module(model)
    after = dict(model.named_parameters()) | dict(model.named_buffers())
    assert [id(t) for t in after.values()] == [id(t) for t in before.values()]


def test_under_a_fake_mode() -> None:
    model = deferred_init(mlp)
    with fake_mode():
        refused(model, r"^0.weight cannot be materialized: a fake mode is active")
    materialize_module(model)


def test_a_real_input_that_was_changed() -> None:
    class Table(nn.Module):
        def __init__(self, values: torch.Tensor) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.register_buffer("table", torch.zeros(3) + values)

    values = torch.ones(3)
    model = deferred_init(Table, values)
    values.add_(1)
    refused(
        model, r"table cannot be .*: it depends on a real tensor of shape \(3,\) that was modified in place"
    )


def test_an_inference_tensor_is_copied_as_its_changes_do_not_show() -> None:
    with torch.inference_mode():
        values = torch.ones(3)
    deferred = deferred_init(lambda: torch.zeros(3) + values)
    with torch.inference_mode():
        values.add_(1)
    assert materialize_tensor(deferred).tolist() == [1.0] * 3


CHANGES = {
    "aten.mul_.Tensor at .*test_materialize.py": lambda w: torch.no_grad()(w.mul_)(2),
    "aten": lambda w: w.data.zero_(),
    "aten.fill_": lambda w: w.detach()[1:].view(-1).fill_(3.0),
}


@pytest.mark.parametrize("operator", CHANGES)
def test_a_parameter_that_was_changed_in_between(operator: str) -> None:
    model = deferred_init(mlp)
    CHANGES[operator](model[2].weight)
    refused(model, f"2.weight cannot be materialized: it was changed by {operator}")


def test_a_parameter_that_was_given_other_data_or_replaced_by_a_foreign_fake() -> None:
    model, other = deferred_init(mlp), deferred_init(mlp)
    model[0].bias.data = torch.empty_like(model[0].bias)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        other[2].bias = nn.Parameter(torch.ones(2))
    refused(model, r"0.bias cannot be materialized: it was assigned different data")
    refused(
        other, r"2.bias cannot be materialized: it is a fake tensor of shape \(2,\) that was created outside"
    )


def test_a_device_that_is_not_here() -> None:
    with emulate("H100"):
        model = deferred_init(nn.Linear, 2, 2, device="cuda")
    refused(model, r"weight cannot be materialized: this machine has no cuda:0 .*pass a different device")
    materialize_module(model, device="cpu")
    assert model.weight.device.type == "cpu"


def test_an_argument_that_may_change_before_the_replay() -> None:
    class FromStorage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            source = torch.ones(4)
            self.fc = nn.Linear(2, 2)
            self.register_buffer("memory", torch.empty(0).set_(source.untyped_storage()))

    refused(
        deferred_init(FromStorage),
        "memory cannot be materialized: it depends on an operator argument of type UntypedS",
    )


class Failing(nn.Module):
    """Its last buffer needs an operator that fails when it runs for real."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_buffer("table", torch.eye(3).index_select(0, torch.full((2,), 7)))


def test_an_operator_that_fails_leaves_nothing_half_materialised() -> None:
    refused(
        deferred_init(Failing), "table cannot be materialized: aten.index_select.default fails on the CPU"
    )


def test_what_the_callbacks_raise_leaves_nothing_half_materialised() -> None:
    def fail(*_: object) -> bool:
        raise KeyError("no plan")

    model = deferred_init(mlp)
    with pytest.raises(KeyError):
        materialize_module(model, check_fn=fail)
    with pytest.raises(KeyError):
        materialize_module(model, shard_fn=fail)
    assert all(is_fake(t) for t in model.parameters())


def test_a_module_made_in_fake_mode_is_materialised_too() -> None:
    torch.manual_seed(0)
    eager = mlp()
    torch.manual_seed(0)
    with fake_mode():
        model = mlp()
    materialize_module(model)
    assert_same_module(model, eager)


def test_modules_in_a_plain_list_are_materialised_and_cycles_end() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.parts = [nn.Linear(2, 3), {"more": (nn.Linear(3, 1), self.fc)}]
            self.parts[0].owners = [self]

    torch.manual_seed(0)
    eager = Listed()
    torch.manual_seed(0)
    model = deferred_init(Listed)
    materialize_module(model)
    assert torch.equal(model.parts[0].weight, eager.parts[0].weight)
    assert torch.equal(model.parts[1]["more"][0].weight, eager.parts[1]["more"][0].weight)
    assert not is_fake(model.fc.weight)
