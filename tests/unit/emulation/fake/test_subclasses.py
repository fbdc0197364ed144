"""Tensor subclasses on their way from a module to its fake: kept, or refused by name."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.masked import masked_tensor

import fakexport as fe
from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import UnsupportedSubclassError, build
from fakexport.emulation.fake.place import place
from fakexport.emulation.history import constant_value
from fakexport.exporting.program import inspect_module
from tests.subclasses import Holder, Scaled, quantized, twice_quantized

WEIGHT = torch.arange(1.0, 65.0).reshape(8, 8)


class Plain(torch.Tensor):
    """A subclass that nothing says the parts of."""


class Tagged(nn.Parameter):
    """A parameter with a class and an attribute of its own."""

    def doubled(self) -> torch.Tensor:
        return self * 2


class Answering(nn.Parameter):
    """A parameter that answers operators itself."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def inner(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors inside, by the tests' own walk."""
    return [*inner(tensor.held), *inner(tensor.scale)] if isinstance(tensor, Scaled) else [tensor]


@pytest.mark.parametrize("make", [quantized, twice_quantized])
@pytest.mark.parametrize("place", ["parameter", "buffer", "attribute"])
@pytest.mark.parametrize("is_live", [True, False])
def test_a_wrapper_stays_one_around_fakes(make, place: str, is_live: bool) -> None:
    module = Holder(make(WEIGHT), place)

    built = build(module if is_live else lambda: Holder(make(WEIGHT.clone()), place))

    weight, real = built.module.weight, module.weight
    assert type(weight) is Scaled
    assert isinstance(weight, nn.Parameter) == isinstance(real, nn.Parameter)
    assert [t.dtype for t in inner(weight)] == [t.dtype for t in inner(real)]
    assert all(type(t) is not torch.Tensor and fe.is_fake(t) for t in inner(weight))
    assert all(torch.equal(constant_value(t), old) for t, old in zip(inner(weight), inner(real), strict=True))
    assert not any(map(fe.is_fake, inner(module.weight)))


def test_a_wrapper_moves_with_what_is_inside_and_keeps_its_ties() -> None:
    with emulate("H100"), fe.fake_mode():
        first, second = Holder(quantized(WEIGHT.clone())), Holder(quantized(WEIGHT.clone()))
        second.weight = first.weight
        module = nn.Sequential(first, second)

        placement = place(module, "cuda:0")

    weight = module[0].weight
    assert module[1].weight is weight
    assert isinstance(weight, nn.Parameter)
    assert {str(t.device) for t in (weight, *inner(weight))} == {"cuda:0"}
    assert set(placement.tensor_devices.values()) == {"cuda:0"}
    assert torch.equal(constant_value(weight.held), quantized(WEIGHT).held)


def test_a_wrapper_that_says_where_it_was_is_refused() -> None:
    class Stays(Scaled):
        @staticmethod
        def __new__(cls, data: torch.Tensor, scale: torch.Tensor) -> Stays:
            return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device="cpu")

    with (
        emulate("H100"),
        pytest.raises(UnsupportedSubclassError, match=r"^weight is a .*Stays.*still reports the device cpu"),
    ):
        build(lambda: Holder(Stays(torch.ones(2, 2), torch.ones(1))), device_map="cuda:0")


def test_a_wrapper_that_its_parts_do_not_make_again_is_refused() -> None:
    class Forgets(Scaled):
        @classmethod
        def __tensor_unflatten__(cls, inner, context, size, stride):
            raise ValueError("lost")

    with pytest.raises(UnsupportedSubclassError, match="raised ValueError: lost"):
        build(Holder(Forgets(torch.ones(2, 2), torch.ones(1))))


def test_the_bytes_of_a_wrapper_are_those_inside() -> None:
    weight = twice_quantized(WEIGHT)
    expected = sum(t.numel() * t.element_size() for t in inner(weight))

    for module in (Holder(weight), build(Holder(weight)).module):
        summary = inspect_module(module)

        assert (summary.total_bytes, summary.dtypes) == (expected, ("float32", "int8"))
        assert expected != weight.nbytes


@pytest.mark.parametrize("place", ["parameter", "buffer", "attribute"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3).as_subclass(Plain),
        lambda: masked_tensor(torch.ones(3), torch.ones(3).bool()),
        lambda: torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(4, 2)], layout=torch.jagged),
    ],
    ids=["own", "masked", "jagged"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors is in prototype stage")
def test_another_subclass_is_refused_by_name(make, place: str) -> None:
    name = type(make()).__qualname__

    with pytest.raises(UnsupportedSubclassError, match=rf"^weight is a .*{name}, which is unsupported"):
        build(Holder(make(), place))
    module = nn.Identity()
    module.tables = [{"a": make()}]
    with pytest.raises(UnsupportedSubclassError, match=r"^tables\[0\]\['a'\] is a"):
        build(module)
    (diagnostic,) = fe.check(lambda: (Holder(make(), place), (torch.ones(2, 3),))).diagnostics
    assert diagnostic.code == "FE103"
    assert name in diagnostic.notes[0]


@contextmanager
def one_rank() -> Iterator[torch.distributed.DeviceMesh]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        yield torch.distributed.init_device_mesh("cpu", (1,))
    finally:
        torch.distributed.destroy_process_group()


def test_a_dtensor_is_refused_by_name() -> None:
    from torch.distributed.tensor import DTensor

    before = dict(os.environ)
    with one_rank() as mesh:
        module = Holder(DTensor.from_local(torch.ones(4, 4), mesh))
        (diagnostic,) = fe.check(lambda: (module, (torch.ones(2, 4),))).diagnostics

    assert dict(os.environ) == before
    assert diagnostic.code == "FE103"
    assert "DTensor" in diagnostic.notes[0]
    assert "full_tensor()" in diagnostic.notes[0]
    assert "--parallel tp=N" in diagnostic.fix.message


@pytest.mark.parametrize("make", [quantized, lambda t: t.as_subclass(Plain), lambda t: Tagged(t)])
def test_an_input_of_a_subclass_is_refused_by_name(make) -> None:
    given = make(WEIGHT.clone())

    for factory, args in ((lambda: nn.Linear(8, 8), (given,)), (lambda: (nn.Linear(8, 8), (given,)), None)):
        with pytest.raises(UnsupportedSubclassError, match=rf"^an example input is .*{type(given).__name__}"):
            fe.export(factory, args)
    report = fe.check(lambda: (nn.Linear(8, 8), (given,)))
    assert [diagnostic.code for diagnostic in report.diagnostics] == ["FE103"]


def test_the_class_and_the_attributes_of_a_live_parameter_stay() -> None:
    module = nn.Linear(8, 8, bias=False)
    module.weight = Tagged(WEIGHT.clone())
    module.weight.tag, module.weight.scale = "rows", torch.ones(8)

    weight = build(module).module.weight

    assert isinstance(weight, Tagged)
    assert (weight.tag, weight.doubled().shape) == ("rows", (8, 8))
    assert fe.is_fake(weight)
    assert fe.is_fake(weight.scale)
    assert torch.equal(constant_value(weight.scale), torch.ones(8))


@pytest.mark.parametrize("is_live", [True, False])
def test_a_parameter_that_answers_operators_itself_is_refused(is_live: bool) -> None:
    def holder() -> nn.Module:
        module = nn.Linear(8, 8, bias=False)
        module.weight = Answering(torch.ones(8, 8))
        return module

    with pytest.raises(UnsupportedSubclassError, match=r"^weight is a .*it overrides `__torch_function__`"):
        build(holder() if is_live else holder)


def test_copies_detached_and_replaced_data_stay_wrappers() -> None:
    def factory() -> nn.Module:
        module = Holder(quantized(WEIGHT.clone()))
        second, third = copy.deepcopy(module), copy.deepcopy(module)
        second.weight = nn.Parameter(module.weight.data, requires_grad=False)
        third.register_buffer("again", module.weight.detach().clone())
        return nn.ModuleList([module, second, third])

    built = build(factory).module

    tensors = dict([*built.named_parameters(), *built.named_buffers()])
    assert list(tensors) == ["0.weight", "1.weight", "2.weight", "2.again"]
    assert {type(tensor) for tensor in tensors.values()} == {Scaled}
    assert all(torch.equal(constant_value(t.held), quantized(WEIGHT).held) for t in tensors.values())
