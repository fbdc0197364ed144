"""Values read while a module is built."""

import gc
import linecache

import numpy as np
import pytest
import torch
from torch import nn

from fakexport.emulation.fake import fake_mode
from fakexport.emulation.history import DataReadError
from fakexport.emulation.history.recording import recording
from fakexport.emulation.history.records import Operation
from fakexport.emulation.history.references import record_of
from fakexport.emulation.history.replay import Replay


@pytest.mark.parametrize(
    "read",
    [
        lambda: [x.item() for x in torch.linspace(0, 0.1, 12)],
        lambda: torch.linspace(0, 0.1, 12).tolist(),
        lambda: torch.linspace(0, 0.1, 12).numpy().tolist(),
        lambda: np.asarray(torch.arange(4.0)).tolist(),
        lambda: bool((torch.arange(3) > 1).any()),
        lambda: int(torch.arange(5).sum()),
        lambda: float(torch.arange(5).float().mean()),
        lambda: torch.equal(torch.arange(3), torch.arange(3)),
        lambda: torch.equal(torch.arange(3), torch.arange(3) + 1),
        lambda: torch.allclose(torch.ones(3), torch.ones(3) + 1e-9),
        lambda: (torch.arange(6).reshape(2, 3) % 2).nonzero().tolist(),
        lambda: torch.unique(torch.tensor([3, 1, 3])).tolist(),
        lambda: torch.arange(4).masked_select(torch.arange(4) > 1).tolist(),
        lambda: torch.arange(4)[torch.arange(4) > 1].tolist(),
        lambda: torch.arange(3).repeat_interleave(torch.tensor([1, 0, 2])).tolist(),
        lambda: torch.bincount(torch.tensor([0, 2, 2])).tolist(),
        lambda: [int(i) for i in torch.where(torch.tensor([True, False, True]))[0]],
        lambda: 2 in torch.arange(3),
        lambda: torch.from_numpy(np.arange(3)).add(1).tolist(),
        lambda: torch.FloatTensor([1, 2]).mul_(2).tolist(),
        lambda: torch.tensor([[1.5], [2.5]]).t().tolist(),
        lambda: torch.nn.functional.one_hot(torch.tensor([0, 2])).tolist(),
        lambda: torch.arange(3).unbind()[2].item(),
        lambda: list(range(torch.tensor(3))),
        lambda: torch.histc(torch.arange(4.0), bins=2).tolist(),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_read_gives_the_true_value(read, device):
    expected = read()

    with fake_mode(topology="H100"), torch.device(device):
        assert read() == expected


def test_a_value_depends_on_the_default_dtype_of_its_time():
    with fake_mode() as mode, recording(mode) as recorded:
        torch.set_default_dtype(torch.float64)
        try:
            table = torch.linspace(0, 1, 7).sin()
            torch.set_default_dtype(torch.float32)
            value = table[3].item()
        finally:
            torch.set_default_dtype(torch.float32)

    assert value == torch.linspace(0, 1, 7, dtype=torch.float64).sin()[3].item()
    assert recorded.constant_value(table).dtype == torch.float64


def test_a_value_does_not_depend_on_autocast_and_grad_mode_around_the_read():
    with fake_mode():
        a = torch.linspace(0, 1, 16).reshape(4, 4)
        b = a @ a

        with torch.autocast("cpu", torch.bfloat16):
            value = b[1, 1].item()

    a = torch.linspace(0, 1, 16).reshape(4, 4)
    assert value == (a @ a)[1, 1].item()


def test_writes_through_views_are_seen():
    with fake_mode():
        table = torch.zeros(4, 4)
        table[:, 0::2] = torch.FloatTensor(np.ones((4, 2)))
        table[1:3].mul_(3)
        table.data[0, 1] = 7

        value = table.tolist()

    assert value == [[1, 7, 1, 0], [3, 0, 3, 0], [3, 0, 3, 0], [1, 0, 1, 0]]


def test_options_that_are_equal_but_of_another_type_stay_apart():
    with fake_mode() as mode, recording(mode) as recorded:
        twice = torch.ones(2, dtype=torch.int64).add(torch.ones(2, dtype=torch.int64), alpha=1)
        real = torch.ones(2).add(torch.ones(2), alpha=1.0)
        thrice = torch.ones(2, dtype=torch.int64).add(torch.ones(2, dtype=torch.int64), alpha=2)

    assert [recorded.constant_value(t).tolist() for t in (twice, real, thrice)] == [
        [2, 2],
        [2.0, 2.0],
        [3, 3],
    ]


def test_a_generator_of_the_model_is_not_advanced():
    with fake_mode() as mode, recording(mode) as recorded:
        generator = torch.Generator().manual_seed(7)
        state = generator.get_state()
        one = torch.empty(3).normal_(generator=generator)
        two = torch.empty(3).normal_(generator=generator)
        three = nn.init.trunc_normal_(torch.empty(3), generator=generator)

    values = [recorded.constant_value(t).tolist() for t in (one, two, three)]
    assert values == [recorded.constant_value(t).tolist() for t in (one, two, three)]
    assert len({v for value in values for v in value}) == 9
    assert torch.equal(generator.get_state(), state)


def test_an_operator_that_writes_into_a_real_tensor_does():
    real = torch.zeros(3)

    with fake_mode() as mode, recording(mode) as recorded:
        real[1:] += torch.arange(2) + 1
        assert real.view(3, 1)[1, 0].item() == 1

    assert real.tolist() == [0, 1, 2]
    assert recorded.constant_value(real) is real


def test_random_values_are_the_same_in_each_read_and_each_run_of_one_seed():
    def build() -> tuple[float, list[float]]:
        with fake_mode():
            weight = torch.empty(3).normal_()
            other = torch.rand(3)
            return weight[0].item(), [*weight.tolist(), *other.tolist()]

    before = torch.get_rng_state()
    first, values = build()

    assert torch.equal(torch.get_rng_state(), before)
    assert first == values[0]
    assert len(set(values)) == 6
    assert build() == (first, values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        assert build() != (first, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bounds", [(-2.0, 2.0), (-0.01, 0.01), (0.03, 0.05)])
def test_truncated_normal_stays_in_its_bounds(dtype, bounds):
    with fake_mode() as mode, recording(mode) as recorded:
        weight = torch.empty(50, 40, dtype=dtype)
        same = nn.init.trunc_normal_(weight, std=0.02, a=bounds[0], b=bounds[1])

    assert same is weight
    value = recorded.constant_value(weight).float()
    low, high = (torch.tensor(bound, dtype=dtype).item() for bound in bounds)
    assert value.min() >= low
    assert value.max() <= high
    assert value.std() > 0


def test_a_truncated_normal_overwrites_and_is_overwritten():
    with fake_mode():
        weight = nn.init.trunc_normal_(torch.ones(6), a=-0.5, b=0.5)
        half = nn.init.trunc_normal_(torch.full((4,), 7.0)[:2], a=-0.5, b=0.5)

        assert max(map(abs, weight.tolist())) <= 0.5
        assert max(map(abs, half.tolist())) <= 0.5
        assert weight.fill_(2).tolist() == [2] * 6
        nn.init.trunc_normal_(torch.empty(100_000, 100_000), std=0.02, a=-0.06, b=0.06)  # Not drawn.


def test_the_value_of_a_tensor_can_be_had_after_the_block_as_a_copy_each_time():
    with fake_mode(topology="H100") as mode, recording(mode) as recorded:
        table = torch.arange(4, device="cuda").float().reciprocal()

    recorded.constant_value(table).add_(1)
    value = recorded.constant_value(table)

    assert torch.equal(value, torch.arange(4).float().reciprocal())
    assert value.device.type == "cpu"


def test_export_inside_of_the_block_is_not_answered_by_replay():
    class Branches(nn.Module):
        def forward(self, x):
            return x[: int(x.sum().item())]

    with fake_mode():
        x = torch.ones(4)

        with pytest.raises(Exception, match="data-dependent"):
            torch.export.export(Branches(), (x,), strict=False).run_decompositions()


class TestUnreplayable:
    def test_a_tensor_made_outside_is_named(self):
        with torch._subclasses.fake_tensor.FakeTensorMode():
            outside = torch.ones(3)

        with fake_mode(), pytest.raises(DataReadError, match="created outside of the recording") as caught:
            (outside * 2).sum().item()

        assert caught.value.operators == ("aten.mul.Tensor", "aten.sum.default")

    def test_the_line_that_read_is_given(self):
        with torch._subclasses.fake_tensor.FakeTensorMode():
            outside = torch.ones(3)

        with fake_mode(), pytest.raises(DataReadError) as caught:
            bool(outside.sum() > 0)  # <- read here

        span = caught.value.span
        assert span.path == __file__
        assert "read here" in linecache.getline(span.path, span.line)
        assert span.function.endswith("test_the_line_that_read_is_given")

    def test_a_real_input_that_changed_is_named(self):
        real = torch.ones(3)
        with fake_mode() as mode, recording(mode) as recorded:
            twice = real * 2

        real.add_(1)

        with pytest.raises(DataReadError, match=r"real tensor of shape \(3,\) that was modified in place"):
            recorded.constant_value(twice)

    def test_an_operator_without_a_cpu_kernel_is_named(self):
        library = torch.library.Library("fakexport_reads", "FRAGMENT")
        library.define("calibrate(Tensor x) -> Tensor")
        library.impl("calibrate", lambda x: x.new_empty(()), "Meta")

        with (
            fake_mode(),
            pytest.raises(DataReadError, match=r"fakexport_reads\.calibrate\.default fails") as c,
        ):
            torch.ops.fakexport_reads.calibrate(torch.arange(8.0)).item()

        assert c.value.history[-1].startswith("%")
        assert isinstance(c.value.__cause__, NotImplementedError)

    def test_a_replay_that_needs_too_much_memory_is_refused(self):
        with fake_mode():
            total = torch.zeros(2**28).add(1).sum()

        with pytest.raises(DataReadError, match="GiB of memory"):
            Replay(limit_bytes=100 * 2**20).values([record_of(total)])


def operations() -> int:
    return sum(issubclass(type(thing), Operation) for thing in gc.get_objects())


def test_a_history_lives_as_long_as_its_tensor_without_garbage_collection():
    gc.collect()
    before = operations()
    gc.disable()
    try:
        with fake_mode():
            for _ in range(3):
                weight = torch.empty(3).normal_()
                weight[1:].mul_(2)
                (weight + 1).sin()
            kept = operations()
            del weight
        left = operations()
    finally:
        gc.enable()

    assert kept == before + 4  # empty, normal_, slice, mul_
    assert left == before


def test_an_overwritten_value_is_forgotten():
    with fake_mode() as mode, recording(mode) as recorded:
        weight = torch.empty(3)
        for _ in range(5):
            weight.uniform_()
        weight.fill_(2)

    assert recorded.constant_value(weight).tolist() == [2, 2, 2]
    assert _history_length(weight) == 2


def _history_length(tensor):
    from fakexport.emulation.history.records import history_of
    from fakexport.emulation.history.references import record_of

    return len(history_of([record_of(tensor)]))
