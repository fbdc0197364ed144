"""`x.new_tensor(data)` where fake mode touches no device."""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fakexport._torch.device_guard import VirtualGuards
from fakexport._torch.device_initialisation import avoid_device_init
from fakexport._torch.new_tensors import new_tensors_stay


def test_stock_takes_the_first_device():
    with VirtualGuards(["cuda"]), avoid_device_init(), FakeTensorMode():
        x = torch.empty(2, device="cuda:3")
        stock = x.new_tensor([1.0]).device
        with new_tensors_stay():
            stays = [x.new_tensor([1.0]).device, x.new_tensor(1, dtype=torch.int64).device]
            asked = x.new_tensor([1.0], device="cpu").device

    assert stock == torch.device("cuda:0")
    assert stays == [x.device] * 2
    assert asked == torch.device("cpu")


def test_fake_tensors_inherit_the_method():
    assert "new_tensor" not in vars(FakeTensor)
