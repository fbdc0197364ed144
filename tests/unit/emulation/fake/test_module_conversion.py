"""`Module.to` and its kin on fake modules."""

import copy
import weakref

import pytest
import torch
from torch import nn

from fakexport.emulation.fake import fake_mode, is_fake
from fakexport.emulation.history.recording import recording


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(3.0))


@pytest.mark.parametrize(
    ("convert", "device", "dtype"),
    [
        (lambda m: m.to("cuda"), "cuda:0", torch.float32),
        (lambda m: m.to("cuda:1"), "cuda:1", torch.float32),
        (lambda m: m.to(torch.device("cuda"), torch.bfloat16), "cuda:0", torch.bfloat16),
        (lambda m: m.to(torch.bfloat16), "cpu", torch.bfloat16),
        (lambda m: m.cuda(), "cuda:0", torch.float32),
        (lambda m: m.cuda(1), "cuda:1", torch.float32),
        (lambda m: m.cuda().cpu(), "cpu", torch.float32),
        (lambda m: m.half(), "cpu", torch.float16),
        (lambda m: m.half().float().double(), "cpu", torch.float64),
    ],
)
def test_a_module_is_converted(convert, device, dtype):
    with fake_mode(topology="2xH100") as mode, recording(mode) as recorded:
        module = Tied()
        weight = module.embed.weight
        held = [weakref.ref(p) for p in module.parameters()]  # The stock conversion refuses these.

        converted = convert(module)

        assert converted is module
        for tensor in [*module.parameters(), *module.buffers()]:
            assert is_fake(tensor)
            assert (str(tensor.device), tensor.dtype) == (device, dtype)
        assert all(isinstance(ref(), nn.Parameter) for ref in held)
        assert module.embed.weight is module.head.weight is weight
        assert weight.requires_grad
        assert weight.is_leaf
        assert (module.head(weight).device, module.head(weight).dtype) == (weight.device, dtype)
    assert torch.equal(recorded.constant_value(module.table).cpu(), torch.arange(3.0).to(dtype))


def test_a_deep_copy_stays_in_the_mode_and_is_independent():
    with fake_mode() as mode, recording(mode) as recorded:
        module = Tied()
        module.embed.weight.mark = ["kept"]

        copied = copy.deepcopy(module)
        nn.init.ones_(copied.embed.weight)

        assert copied.embed.weight.fake_mode is mode
        assert copied.embed.weight is copied.head.weight
        assert copied.embed.weight is not module.embed.weight
        assert isinstance(copied.embed.weight, nn.Parameter)
        assert copied.embed.weight.mark == ["kept"]
    assert torch.equal(recorded.constant_value(copied.embed.weight), torch.ones(5, 3))
    assert not torch.equal(recorded.constant_value(module.embed.weight), torch.ones(5, 3))


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("tail", None)
        self.table = torch.arange(12.0).view(3, 4)
        self.tail = self.table[1:, ::2]
        self.turned = self.table.t()
        self.bits = self.table.view(torch.int32)
        self.weight = nn.Parameter(self.table[2])


@pytest.mark.parametrize("changed", ["table", "tail", "turned", "bits", "weight"])
def test_a_deep_copy_shares_memory_where_the_copy_of_a_real_module_does(changed):
    def values(constant_value):
        module = copy.deepcopy(Views())
        with torch.no_grad():
            getattr(module, changed).add_(1)
        names = ("table", "tail", "turned", "bits", "weight")
        tensors = [getattr(module, name) for name in names]
        return [
            (constant_value(tensor).tolist(), tensor.stride(), tensor.storage_offset()) for tensor in tensors
        ]

    with fake_mode() as mode, recording(mode) as recorded:
        faked = values(recorded.constant_value)

    assert faked == values(torch.Tensor.detach)


def _lazily_conjugated():
    turn = torch.arange(3.0) * 1j
    return turn, turn.conj(), turn.conj().imag


def _of_no_whole_number_of_elements():
    table = torch.arange(3.0)
    return table, table[:2].view(torch.int64), table[1:]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("made", [_lazily_conjugated, _of_no_whole_number_of_elements])
def test_a_deep_copy_of_views_with_other_elements_has_their_values(made, reverse):
    with fake_mode() as mode, recording(mode) as recorded:
        copies = copy.deepcopy(made()[:: -1 if reverse else 1])
    found = [recorded.constant_value(tensor).tolist() for tensor in copies]

    assert found == [tensor.tolist() for tensor in made()[:: -1 if reverse else 1]]


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_deep_copy_after_the_block_has_the_value_of_the_original():
    with fake_mode() as mode, recording(mode) as recorded:
        module = nn.Module()
        module.register_buffer("table", torch.arange(3.0))
        module.table.mul_(2)

    copied = copy.deepcopy(module)

    assert copied.table.fake_mode is mode
    assert recorded.constant_value(copied.table).tolist() == [0.0, 2.0, 4.0]
