"""The predicted peak of a program is what torch's profiler records of a real run, at sizes never traced."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.nn import functional

import fakexport as fe
from fakexport.error import InvalidValue
from fakexport.planning.memory.liveness import DevicePeak, Liveness, liveness, sizes_at
from fakexport.planning.memory.storage import Storage
from tests.measured_memory import measured_peak

Function = Callable[..., Any]


class _Module(nn.Module):
    """A function as a module, with a weight and a buffer that functions may use."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(24, 40)
        self.tied = nn.Linear(24, 40, bias=False)
        self.tied.weight = self.linear.weight
        self.batch_norm = nn.BatchNorm1d(24)
        self.register_buffer("count", torch.zeros(100))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def _program(function: Function, rows: int = 6, columns: int = 24) -> ExportedProgram:
    module = _Module(function).eval()
    return export(module, (torch.randn(rows, columns),), dynamic_shapes=({0: Dim.AUTO},))


def _peak(program: ExportedProgram, rows: int) -> DevicePeak:
    found = liveness(program)
    return sizes_at(found, dict.fromkeys(found.symbols, rows)).peak("cpu")


def a_view_outlives_its_base(m: _Module, x: torch.Tensor) -> Any:
    first = (x * 2)[:, :1]
    return first + (x + 1) * (x + 2)


def a_slice_returned_keeps_all(m: _Module, x: torch.Tensor) -> Any:
    return m.linear(x)[-1:], x.relu()


def a_tensor_grows(m: _Module, x: torch.Tensor) -> Any:
    y, z = x * 2, torch.empty(0)
    y.resize_(4 * x.shape[0], 24)
    torch.add(y.zero_(), 1, out=z)
    return z * 2, y


def nothing_is_copied(m: _Module, x: torch.Tensor) -> Any:
    y = x.abs()
    y = y.to(torch.float32).contiguous().reshape(-1, 4, 6).flatten(1).expand(3, -1, -1)
    return functional.dropout(y, 0.5, m.training).expand_as(y).sum(0)


def a_reshape_copies(m: _Module, x: torch.Tensor) -> Any:
    y = x.abs().view(-1, 4, 6).transpose(1, 2)
    return y.reshape(-1, 24).sum(0), y.contiguous().exp()


def writes_in_place(m: _Module, x: torch.Tensor) -> Any:
    y = x + 1
    y.add_(x).mul_(2)
    y[:, :2] = 3.0
    return y.relu_().sum()


def writes_an_input(m: _Module, x: torch.Tensor) -> Any:
    x.add_(1)
    return x * 2


def returns_an_input(m: _Module, x: torch.Tensor) -> Any:
    return x, x.view(-1), x + 1


def uses_a_tied_weight(m: _Module, x: torch.Tensor) -> Any:
    return m.linear(x) + m.tied(x)


def writes_a_buffer(m: _Module, x: torch.Tensor) -> Any:
    m.count.add_(x.sum())
    m.count[:24].copy_(x.mean(0))
    return m.count * 2


def takes_parts(m: _Module, x: torch.Tensor) -> Any:
    a, b, _ = (x * 2).split(8, dim=1)
    values, places = x.topk(3, dim=1)
    return a * b, values + places, torch.stack((x, x)).unbind()[0].chunk(2)[1] + 1


def has_an_empty_tensor(m: _Module, x: torch.Tensor) -> Any:
    return torch.cat((x[:, :0] * 2, x), dim=1).sum(), x.new_zeros(0)


def has_other_dtypes(m: _Module, x: torch.Tensor) -> Any:
    spectrum = torch.fft.rfft(x.double())
    return spectrum.abs().half(), x > 0, x.to(torch.int8), x.to(torch.float8_e4m3fn)


def pads(m: _Module, x: torch.Tensor) -> Any:
    y = functional.pad(x * 2, (1, 2, 3, 4))
    return functional.interpolate(y[None, None], scale_factor=2, mode="nearest").relu()


def computes_sizes(m: _Module, x: torch.Tensor) -> Any:
    rows = x.shape[0]
    half = x[: rows // 2] * 2
    longest = torch.zeros(torch.sym_max(rows, 9) + rows % 5, 7)
    pooled = functional.avg_pool1d(x.t()[None], 3, stride=2)
    return half, longest, pooled + 1, torch.arange(rows * rows)


def branches_on_data(m: _Module, x: torch.Tensor) -> Any:
    y = x * 2
    return torch.cond(x.sum() > 0, lambda t: (t + 1) * (t + 2), lambda t: t - 1, (y,)) + y


def loops(m: _Module, x: torch.Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, (t + 1) * 2), (torch.tensor(0), x))[1] + 1


def has_regions(m: _Module, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x.bfloat16().softmax(-1)
    with torch.no_grad():
        z = (x + 1) * (x + 2)
    return y + z


def multiplies(m: _Module, x: torch.Tensor) -> Any:
    q = m.linear(x).view(-1, 2, 5, 4).transpose(1, 2)
    scores = (q @ q.transpose(-1, -2)).softmax(-1)
    return torch.einsum("bhij,bhjd->bihd", scores, q).reshape(x.shape[0], -1)


def normalizes(m: _Module, x: torch.Tensor) -> Any:
    return functional.layer_norm(m.batch_norm(x), (24,)) + functional.gelu(x)


FUNCTIONS = [
    a_view_outlives_its_base, a_slice_returned_keeps_all, a_tensor_grows, nothing_is_copied, a_reshape_copies,
    writes_in_place, writes_an_input, returns_an_input, uses_a_tied_weight, writes_a_buffer, takes_parts,
    has_an_empty_tensor, has_other_dtypes, computes_sizes, branches_on_data, loops, has_regions, multiplies,
    normalizes, pads,
]  # fmt: skip


@functools.cache
def _exported(function: Function) -> ExportedProgram:
    return _program(function)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_the_predicted_peak_is_the_measured_one(function):
    program = _exported(function)
    module = program.module()

    predicted = [_peak(program, rows).run_bytes for rows in (6, 13, 64)]

    assert predicted == [_measured(module, torch.ones(rows, 24)) for rows in (6, 13, 64)]


def _measured(module: nn.Module, x: torch.Tensor) -> int:
    return measured_peak(lambda: module(x))


def test_what_a_program_holds_is_told_by_kind():
    def function(m: _Module, x: torch.Tensor) -> Any:
        m.count.add_(1)
        return m.tied(x) + m.linear(x) + torch.tensor([1.5, 2.5] * 20), x

    storages = {storage.name: storage for storage in _held(function)}

    weight = storages["linear.weight"]
    assert (weight.kind, weight.bytes) == ("weight", 24 * 40 * 4)
    assert weight.names == ("linear.weight", "tied.weight")
    assert (storages["count"].kind, storages["count"].bytes) == ("state", 400)
    assert [storage.bytes for storage in storages.values() if storage.kind == "constant"] == [160]
    assert (storages["x"].kind, str(storages["x"].bytes / 96)) == ("state", storages["x"].shape[0].name)


def _held(function: Function) -> list[Storage]:
    found = liveness(_program(function))
    held = found.storages[: found.held]
    return [storage for storage in held if storage.kind != "weight" or "tied.weight" in storage.names]


def test_the_peak_names_the_module_the_line_and_the_largest():
    def function(m: _Module, x: torch.Tensor) -> Any:
        return m.linear(x).exp().sum()

    peak = _peak(_program(function), 50)

    assert peak.step is not None
    assert (peak.step.node.name, peak.step.span is not None and peak.step.span.path) == ("exp", __file__)
    assert [live.storage.name for live in peak.largest[:4]] == ["linear", "exp", "x", "linear.weight"]
    assert [live.bytes for live in peak.largest[:4]] == [8000, 8000, 4800, 3840]
    assert peak.bytes == sum(peak.bytes_by_kind.values()) == peak.held_bytes + 16000


def test_a_size_without_a_value_is_named():
    found = liveness(_exported(multiplies))

    with pytest.raises(InvalidValue, match=f"symbols without a value: {found.symbols[0]}"):
        sizes_at(found, {})


def test_a_tensor_is_held_where_it_is_and_where_it_goes():
    class Moves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((x * 2).to("cuda:1") + 1).to("cpu") - 1

    program = fe.export(Moves, (torch.zeros(8, 64),), target="2xH100")

    found = liveness(program)
    sizes = sizes_at(found, {})

    assert found.devices == ("cpu", "cuda:0", "cuda:1")
    assert [sizes.peak(device).bytes for device in found.devices] == [4096 + 8 + 4, 4096, 4096]


class _Blocks(nn.ModuleList):
    """Equal blocks, each on a device of its own, with operators that are made of others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self:
            x = x.to(block.weight.device).to(block.weight.device)
            heads = block(x).unflatten(-1, (4, -1)).transpose(1, 2)
            x = functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        return x


@pytest.mark.parametrize("target", ["3xH100", "2xH100+cpu", "H100+T4+H100"])
def test_equal_calls_on_several_devices_take_what_each_takes_alone(target):
    """A call is looked at once for devices of one model: not for another model, and not for a transfer."""

    def blocks(count: int) -> Any:
        return lambda: (_Blocks(nn.Linear(64, 64) for _ in range(count)), (torch.zeros(2, 32, 64),))

    devices = fe.Topology.parse(target).devices
    entries = {str(index): device.name for index, device in enumerate(devices)}
    program = fe.export(blocks(3), target=target, device_map={"": devices[0].name, **entries})

    found = liveness(program)

    for device in devices:
        alone = liveness(fe.export(blocks(1), target=device.profile.name))
        (own,) = alone.devices
        expected = _run_sizes(alone, own)
        assert expected
        assert _run_sizes(found, device.name) == expected


def _run_sizes(found: Liveness, device: str) -> list[tuple[str, Any]]:
    """Return what operators take on a device; transfers are not part of a block."""
    taken = (storage for storage in found.storages[found.held :] if storage.device == device)
    return [(one.operator, one.bytes) for one in taken if "to" not in one.operator.split(".")[1].split("_")]
