"""Memory of fake tensors that Python writes past the operators: through NumPy, buffers and storages."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch
from torch import nn

from fakexport.emulation.fake import fake_mode
from fakexport.emulation.history import DataReadError, constant_value
from fakexport.emulation.history.recording import recording


def read_before_the_array_changes():
    a = np.zeros(4, dtype="float32")
    doubled = torch.from_numpy(a) * 2
    a[1] = 5
    return doubled


def read_before_what_it_shows_changes():
    t = torch.zeros(4)
    shown, doubled = t.numpy(), t * 2
    shown[1] = 5
    return torch.stack([doubled, t])


def array_used_again():
    a, rows = np.zeros(4, dtype="float32"), []
    for i in range(3):
        a[i] = i + 1
        rows.append(torch.tensor(a))
    return torch.stack(rows)


def array_written_by_init():
    a = np.zeros((3, 3), dtype="float32")
    nn.init.eye_(nn.Parameter(torch.from_numpy(a)))
    return torch.tensor(a)


def array_as_out():
    a = np.zeros(4, dtype="float32")
    torch.add(torch.ones(4), 1, out=torch.from_numpy(a))
    return torch.tensor(a)


def shown_and_written():
    t = torch.zeros(4)
    shown = t.numpy()
    t.add_(1)
    return t + float(shown[0])


def written_on_both_sides():
    t = torch.zeros(4)
    shown = np.asarray(t)
    shown += 3
    t.mul_(2)
    return t + float(shown[0])


def shown_twice():
    t = torch.zeros(4)
    t.numpy()[0] = 1
    t.numpy()[1] = float(t.numpy()[0]) + 1
    return t * 2


def parameter_shown():
    w = nn.Parameter(torch.zeros(4))
    w.detach().numpy()[2] = 4
    return w.detach() + 1


def truncated():
    a = np.zeros(4, dtype="float32")
    nn.init.trunc_normal_(torch.from_numpy(a))
    return torch.tensor(a)


def buffer_of_bytes():
    held = bytearray(16)
    t = torch.frombuffer(held, dtype=torch.float32)
    more = t + 1
    held[3] = 64
    return torch.stack([t + 0, more])


def memory_view():
    a = np.zeros(4, dtype="float32")
    t = torch.from_numpy(a)
    memoryview(a)[2] = 7.0
    return t


def array_of_python():
    held = array("f", [1, 2, 3, 4])
    copied = torch.tensor(held)
    held[0] = 7
    return copied


def last_write_after_the_last_operator():
    a = np.zeros(4, dtype="float32")
    t = torch.from_numpy(a)
    t.add_(1)
    a[0] = 9
    return t


SHARED = [
    read_before_the_array_changes,
    read_before_what_it_shows_changes,
    array_used_again,
    array_written_by_init,
    array_as_out,
    shown_and_written,
    written_on_both_sides,
    shown_twice,
    parameter_shown,
    truncated,
    buffer_of_bytes,
    memory_view,
    array_of_python,
    last_write_after_the_last_operator,
]


@pytest.mark.parametrize("make", SHARED, ids=lambda make: make.__name__)
def test_memory_that_numpy_shares_has_the_values_of_eager_mode(make):
    torch.manual_seed(0)
    expected = make()
    torch.manual_seed(0)

    with fake_mode() as mode, recording(mode):
        made = make()

    assert torch.equal(constant_value(made), expected)


def storage_filled(t):
    t.untyped_storage().fill_(0)
    return t


def byte_written(t):
    t[1:].untyped_storage()[3] = 64
    return t * 2


def bytes_swapped(t):
    t.untyped_storage().byteswap(torch.float32)
    return t


def typed_item(t):
    t.storage()[1] = 9
    return t + 0


def written_by_another_tensor(t):
    torch.empty(0).set_(t.untyped_storage(), 0, (4,)).fill_(3)
    return t


def several_arrays(t):
    whole, part = t.numpy(), t[1:].numpy()
    part[0] = 3
    whole[1] += 1
    return t + 0


UNKNOWN = [
    storage_filled,
    byte_written,
    bytes_swapped,
    typed_item,
    written_by_another_tensor,
    several_arrays,
]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize("write", UNKNOWN, ids=lambda write: write.__name__)
def test_a_write_that_cannot_be_followed_leaves_no_value(write):
    with fake_mode() as mode, recording(mode):
        made = write(torch.arange(4.0))

        with pytest.raises(DataReadError):
            constant_value(made)
        assert constant_value(torch.arange(4.0)).tolist() == [0, 1, 2, 3]


def restored():
    state = torch.get_rng_state()
    first = torch.rand(4)
    torch.set_rng_state(state)
    return first + torch.rand(4)


def of_the_cpu_between():
    return torch.cat([torch.randn(3).cpu(), torch.randn(5, device="cpu"), torch.randn(2).cpu()])


def without_a_device():
    return torch.normal(0.0, 1.0, (4,)) + torch.rand(4).cpu()


DRAWN = [restored, of_the_cpu_between, without_a_device]


@pytest.mark.parametrize("draw", DRAWN, ids=lambda draw: draw.__name__)
def test_what_is_drawn_on_a_gpu_and_on_the_cpu_is_one_sequence(draw):
    torch.manual_seed(0)
    expected, after = draw(), torch.rand(3)
    torch.manual_seed(0)

    with fake_mode(topology="H100") as mode, torch.device("cuda"), recording(mode):
        made, later = draw(), torch.rand(3)

    assert torch.equal(constant_value(made), expected)
    assert torch.equal(constant_value(later), after)
