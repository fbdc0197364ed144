import copy

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import fakexport as fe
from fakexport.emulation.fake import constant_value, fake_mode, is_fake, meta_like
from fakexport.emulation.history import DataReadError
from fakexport.exporting.capture import UnboundConstants
from fakexport.exporting.program.weightless import has_value


def test_tensors_of_the_block_are_fake_also_on_a_device_and_in_an_inner_block():
    with fake_mode(topology="2xH100") as outer, fake_mode() as inner:
        a = torch.ones(10, device="cuda:1")

    assert is_fake(a)
    assert (a.shape, a.device) == ((10,), torch.device("cuda:1"))
    assert inner is outer
    assert not is_fake(torch.ones(10))
    assert not is_fake("tensor")


def test_an_unknown_topology_is_named():
    with pytest.raises(ValueError, match="H1000"), fake_mode(topology="H1000"):
        pass


def test_real_devices_fail_as_before_after_the_block():
    if torch.cuda.is_available():
        pytest.skip("there is a real device")
    with pytest.raises((AssertionError, RuntimeError)) as before:
        torch.ones(10, device="cuda")
    with fake_mode(topology="H100"):
        torch.ones(10, device="cuda")

    with pytest.raises((AssertionError, RuntimeError)) as after:
        torch.ones(10, device="cuda")

    assert str(after.value) == str(before.value)


def test_a_block_inside_of_a_stock_mode_goes_on_with_that():
    with FakeTensorMode() as stock, fake_mode() as inner:
        assert inner is stock
        assert torch.linspace(0, 1, 3).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.ones(10, device="cuda"), "tensor(..., device='cuda:0', size=(10,), fake=True)"),
        (lambda: torch.ones(3, dtype=torch.half), "tensor(..., size=(3,), dtype=torch.float16, fake=True)"),
        (lambda: torch.ones(2, requires_grad=True) * 2,
         "tensor(..., size=(2,), grad_fn=<MulBackward0>, fake=True)"),
        (lambda: nn.Parameter(torch.ones(2)),
         "Parameter containing:\ntensor(..., size=(2,), requires_grad=True, fake=True)"),
        (lambda: [torch.ones(1)], "[tensor(..., size=(1,), fake=True)]"),
    ],
)  # fmt: skip
def test_a_fake_tensor_prints_shortly_and_one_of_another_mode_as_torch_prints_it(make, text):
    with FakeTensorMode():
        other = torch.ones(2)
    stock = repr(other)

    with fake_mode(topology="H100"):
        assert repr(make()) == text
        assert repr(other) == stock


def test_every_method_of_fake_tensors_is_the_original_after_the_block():
    before = dict(vars(FakeTensor)), torch.utils.swap_tensors, dict(vars(FakeTensorMode))

    with pytest.raises(ZeroDivisionError), fake_mode(topology="H100"), fake_mode():
        raise ZeroDivisionError

    assert (dict(vars(FakeTensor)), torch.utils.swap_tensors, dict(vars(FakeTensorMode))) == before


def test_the_mode_records_nothing_after_the_block_but_notices_writes():
    with fake_mode() as mode:
        buffer = torch.ones(2)
        view = buffer[:1]
    other = buffer + 1
    view.add_(1)

    assert type(mode) is FakeTensorMode
    with pytest.raises(DataReadError, match=r"created outside of the recording"):
        constant_value(other)
    with pytest.raises(DataReadError, match=r"changed by aten.add_.Tensor at .*test_mode.py"):
        constant_value(buffer)


class _Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.arange(3.0), persistent=False)

    def forward(self, x):
        return x * self.scale


def _set_element(tensor):
    tensor[0] = 7


def _give_data(tensor):
    tensor.data = torch.full((3,), 7.0)


def _give_other_data_often(tensor):
    for _ in range(8):  # The memory of the first could get its address back.
        tensor.data = tensor.data.flip(0)


@pytest.mark.parametrize("change", [_set_element, _give_data, _give_other_data_often])
def test_a_buffer_that_is_changed_after_the_block_is_not_a_constant_with_its_old_value(change):
    with fake_mode():
        model = _Scale()
    with torch.no_grad():
        change(model.scale)

    with pytest.raises(DataReadError, match="which was not recorded"):
        constant_value(model.scale)
    with pytest.warns(UnboundConstants, match="scale"):
        program = fe.export(model, (torch.ones(3),))

    assert not has_value(program.constants["scale"])


def _changed_copy(model, change):
    copied = copy.deepcopy(model)
    change(copied.scale)
    return copied


def _copy_of_changed(model, change):
    change(model.scale)
    return copy.deepcopy(model)


def _changed_copy_of_a_copy(model, change):
    return _changed_copy(copy.deepcopy(model), change)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("change", [_set_element, _give_other_data_often])
@pytest.mark.parametrize("copied", [_changed_copy, _copy_of_changed, _changed_copy_of_a_copy])
def test_a_deep_copy_of_a_model_that_is_changed_after_the_block_does_not_have_the_old_value(copied, change):
    with fake_mode():
        original = _Scale()
    with torch.no_grad():
        model = copied(original, change)

    with pytest.raises(DataReadError, match="which was not recorded"):
        constant_value(model.scale)
    if copied is not _copy_of_changed:
        assert constant_value(original.scale).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_change_of_a_deep_copy_counts_for_the_copies_of_the_views_of_its_memory():
    with fake_mode():
        model = _Scale()
        model.first = model.scale[:2]
    copied = copy.deepcopy(model)

    copied.scale.add_(1)

    with pytest.raises(DataReadError, match=r"changed by aten\.add_"):
        constant_value(copied.first)
    assert constant_value(model.first).tolist() == [0.0, 1.0]


def test_meta_like_describes_a_fake_tensor():
    with fake_mode(topology="H100"):
        a = torch.ones(4, 6, dtype=torch.half, device="cuda", requires_grad=True)[1:, ::2].t()

    b = meta_like(a)

    assert b.device.type == "meta"
    assert not is_fake(b)
    assert (b.dtype, b.size(), b.stride(), b.storage_offset()) == (torch.half, (3, 3), (2, 6), 6)
    assert b.untyped_storage().nbytes() == a.untyped_storage().nbytes()
    assert (b.grad_fn, b.requires_grad) == (None, False)
    with pytest.raises(ValueError, match="expected a fake tensor, got Tensor"):
        meta_like(torch.ones(2))
