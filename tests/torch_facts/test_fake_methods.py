"""What `fake_methods` relies on: which methods of fake tensors stock torch gets wrong."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fakexport._torch.emulation.fake_methods import describe_fake, fake_methods, storage_writes

REAL = torch.ones(2, 3).t()


def refuse(tensor):
    raise AssertionError


def ignore(tensor, other):
    pass


MOVES = {
    "half": (lambda: nn.Linear(2, 2), lambda module: module.half()),
    "to_empty": (lambda: nn.Linear(2, 2, device="meta"), lambda module: module.to_empty(device="cpu")),
}


@pytest.mark.parametrize(("make", "move"), MOVES.values(), ids=list(MOVES))
def test_stock_refuses_to_convert_a_fake_module_with_weak_references(make, move):
    with FakeTensorMode():
        module = make()
        reference = weakref.ref(module.weight)
        with pytest.raises(RuntimeError, match="Couldn't swap Linear"):
            move(module)
    assert reference() is module.weight

    mode = FakeTensorMode()
    with mode, fake_methods(mode, refuse, ignore):
        module = make()
        reference = weakref.ref(module.weight)
        move(module)

    assert (module.weight.dtype is torch.half) == (make is MOVES["half"][0])
    assert module.weight.device.type == "cpu"
    assert reference() is module.weight
    assert isinstance(module.weight, nn.Parameter)


def test_stock_assignment_of_data_keeps_the_old_device():
    with FakeTensorMode():
        a = torch.ones(2)
        a.data = torch.ones(2, device="cuda")
    assert a.device.type == "cpu"

    mode, told = FakeTensorMode(), []
    with mode, fake_methods(mode, refuse, lambda *given: told.append(given)):
        a, b = torch.ones(2), torch.ones(3, device="cuda", dtype=torch.half)
        a.data = b

    assert (a.device.type, a.shape, a.dtype) == ("cuda", (3,), torch.half)
    assert told[0][0] is a
    assert told[0][1] is b


def test_numpy_and_tolist_ask_for_the_value():
    with FakeTensorMode(), pytest.raises(RuntimeError):
        torch.ones(2).numpy()

    mode = FakeTensorMode()
    with mode, fake_methods(mode, lambda tensor: torch.full(tensor.shape, 3.0), ignore):
        a = torch.ones(2)
        assert a.numpy().tolist() == a.tolist() == a.__array__().tolist() == [3.0, 3.0]


def test_a_deep_copy_asks_for_no_data_pointer_and_a_real_tensor_is_copied_as_a_fake():
    with FakeTensorMode(), pytest.raises(RuntimeError, match="set the storage"):
        copy.deepcopy(REAL)

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, fake_methods(mode, refuse, ignore):
        module, copied = copy.deepcopy(nn.Linear(2, 2)), copy.deepcopy(REAL)

    assert module.weight.fake_mode is mode
    assert isinstance(module.weight, nn.Parameter)
    assert isinstance(copied, FakeTensor)
    assert (copied.shape, copied.stride()) == (REAL.shape, REAL.stride())


def test_recurrent_weights_are_not_asked_for_data_pointers(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: True)
    monkeypatch.setattr(FakeTensor, "data_ptr", lambda tensor: asked.append(tensor) or 0, raising=False)
    mode = FakeTensorMode()

    with mode, torch.device("cuda"), fake_methods(mode, refuse, ignore):
        nn.LSTM(2, 3)
    asked_of_ours = len(asked)
    with mode, torch.device("cuda"):
        nn.LSTM(2, 3)

    assert (asked_of_ours, len(asked)) == (0, 4)


def test_stock_prints_another_text():
    with FakeTensorMode():
        a = torch.ones(2)
        parameter = nn.Parameter(a)

    assert repr(a) == "FakeTensor(..., size=(2,))"
    assert describe_fake(a) == "tensor(..., size=(2,), fake=True)"
    assert describe_fake(parameter).startswith("Parameter containing:\ntensor(")


class CopiesStorage(nn.Module):
    def forward(self, x):
        y = x * 1
        y.untyped_storage().copy_(torch.zeros(3).untyped_storage())
        return y


def test_stock_refuses_storages_in_a_trace_and_ignores_writes_to_those_of_fakes():
    """When the first one fails, traces need `storage_writes` too."""
    with pytest.raises(NotImplementedError, match="UntypedStorage"):
        torch.export.export(CopiesStorage(), (torch.ones(3),))
    with FakeTensorMode():
        fake = torch.arange(3.0)
        assert fake.untyped_storage().copy_(torch.zeros(3).untyped_storage()).nbytes() == 12


def test_a_write_to_a_storage_without_data_is_noted_and_others_happen():
    seen, real = [], torch.arange(3.0)

    with storage_writes(lambda storage: not seen.append(storage.nbytes())):
        real.untyped_storage().fill_(0)
        with FakeTensorMode():
            fake = torch.arange(3.0)
            fake.untyped_storage().byteswap(torch.float32)
            fake.untyped_storage()[0] = 1

    assert real.tolist() == [0, 0, 0]
    assert seen == [12, 12]
