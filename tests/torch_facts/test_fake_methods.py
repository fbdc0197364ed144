"""What `fakexport._torch.fake_methods` relies on."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fakexport._torch.fake_methods import fake_methods


def _refuse(tensor: torch.Tensor) -> torch.Tensor:
    raise AssertionError


def _ignore(tensor: torch.Tensor, other: torch.Tensor) -> None:
    pass


def test_stock_conversion_of_a_fake_module_refuses_weak_references() -> None:
    with FakeTensorMode():
        module = nn.Linear(2, 2)
        reference = weakref.ref(module.weight)

        with pytest.raises(RuntimeError, match="Couldn't swap Linear"):
            module.half()

    assert reference() is module.weight


def test_a_conversion_calls_the_swap_of_torch_utils() -> None:
    mode = FakeTensorMode()
    with mode, fake_methods(mode, _refuse, _ignore):
        module = nn.Linear(2, 2)
        reference = weakref.ref(module.weight)

        module.half()

    assert module.weight.dtype == torch.half
    assert reference() is module.weight


def test_stock_assignment_of_data_keeps_the_old_device() -> None:
    with FakeTensorMode():
        a = torch.ones(2)
        a.data = torch.ones(2, device="cuda")

    assert a.device.type == "cpu"


def test_assigned_data_bring_their_device() -> None:
    mode = FakeTensorMode()
    told = []
    with mode, fake_methods(mode, _refuse, lambda tensor, other: told.append((tensor, other))):
        a, b = torch.ones(2), torch.ones(3, device="cuda", dtype=torch.half)
        a.data = b

    assert (a.device.type, a.shape, a.dtype) == ("cuda", (3,), torch.half)
    assert told[0][0] is a
    assert told[0][1] is b


def test_numpy_and_tolist_ask_for_the_value() -> None:
    mode = FakeTensorMode()
    with mode, fake_methods(mode, lambda tensor: torch.full(tensor.shape, 3.0), _ignore):
        a = torch.ones(2)

        assert a.numpy().tolist() == [3.0, 3.0]
        assert a.tolist() == [3.0, 3.0]
        assert a.__array__().tolist() == [3.0, 3.0]


def test_stock_numpy_of_a_fake_tensor_fails() -> None:
    with FakeTensorMode(), pytest.raises(RuntimeError):
        torch.ones(2).numpy()


def test_a_deep_copy_asks_for_no_data_pointer() -> None:
    mode = FakeTensorMode()
    with mode, fake_methods(mode, _refuse, _ignore):
        copied = copy.deepcopy(nn.Linear(2, 2))

    assert copied.weight.fake_mode is mode
    assert isinstance(copied.weight, nn.Parameter)


def test_stock_refuses_to_move_a_fake_module_away_from_the_meta_device() -> None:
    with FakeTensorMode():
        module = nn.Linear(2, 2, device="meta")
        reference = weakref.ref(module.weight)

        with pytest.raises(RuntimeError, match="Couldn't swap Linear"):
            module.to_empty(device="cpu")

    assert reference() is module.weight


def test_a_fake_module_moves_away_from_the_meta_device() -> None:
    mode = FakeTensorMode()
    with mode, fake_methods(mode, _refuse, _ignore):
        module = nn.Linear(2, 2, device="meta")
        reference = weakref.ref(module.weight)

        module.to_empty(device="cpu")

        assert module(torch.ones(1, 2)).device.type == "cpu"

    assert reference() is module.weight
    assert isinstance(module.weight, nn.Parameter)


def test_stock_cannot_copy_a_real_tensor_under_fake_mode() -> None:
    with FakeTensorMode(), pytest.raises(RuntimeError, match="set the storage"):
        copy.deepcopy(_REAL)


def test_a_real_tensor_is_copied_as_a_fake() -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, fake_methods(mode, _refuse, _ignore):
        copied = copy.deepcopy(_REAL)

    assert type(copied).__name__ == "FakeTensor"
    assert (copied.shape, copied.stride()) == (_REAL.shape, _REAL.stride())


_REAL = torch.ones(2, 3).t()


def test_recurrent_weights_are_not_asked_for_data_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Tensor] = []
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: True)
    monkeypatch.setattr(FakeTensor, "data_ptr", lambda tensor: asked.append(tensor) or 0, raising=False)
    mode = FakeTensorMode()

    with mode, torch.device("cuda"), fake_methods(mode, _refuse, _ignore):
        nn.LSTM(2, 3)
    asked_of_ours = len(asked)
    with mode, torch.device("cuda"):
        nn.LSTM(2, 3)

    assert (asked_of_ours, len(asked)) == (0, 4)
