"""The constants of a fake-exported program have their true values, or are named as having none."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

import fakexport as fe
from fakexport._torch.emulation.fake_tensors import mode_of
from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build, deferred_init, materialize_module
from fakexport.emulation.history import DataReadError, constant_value
from fakexport.emulation.history.records import history_of
from fakexport.emulation.history.references import record_of
from fakexport.exporting.capture import Captured, Recovered, UnboundConstants, capture, constants
from fakexport.exporting.capture.constants import recover_constants
from tests.real_constants import same_bits

X = torch.arange(8.0).view(2, 4)


@pytest.fixture(autouse=True)
def no_seed() -> Iterator[None]:
    """Nobody chose a seed, whichever test ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        yield


class Constants(nn.Module):
    """A constant of every kind, each made in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("inv_freq", 1.0 / 100 ** (torch.arange(0, 8, 2) / 8), persistent=False)
        self.register_buffer("position_ids", torch.arange(4).expand(1, -1), persistent=False)
        self.register_buffer("running", torch.zeros(4))
        self.mask = torch.ones(4, 4).tril().bool()
        self.columns = torch.arange(16.0).view(4, 4).t()
        self.listed = [torch.linspace(-1, 1, 4), torch.full((4,), float("nan"))]
        self.scale = torch.zeros_like(self.linear.weight).fill_(3.0)
        self.same_scale = self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * self.inv_freq + self.position_ids + self.running
        y = y @ self.columns.masked_fill(self.mask, 0.0) + self.listed[0] * self.listed[1].isnan()
        return y @ self.scale + self.same_scale.sum() + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)


def captured(make: Callable[[], Any], **options: Any) -> Captured:
    built = build(make, **options)
    with built.mode:
        x = torch.empty(2, 4, device=built.placement.input_device)
    return capture(built.module, (x,))


def expected() -> dict[str, torch.Tensor]:
    """The constants of a stock export of the real model."""
    return torch.export.export(Constants(), (X,)).constants


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_on_the_cpu_they_are_those_of_the_real_model(strict):
    program = fe.export(Constants, (X,), strict=strict)

    real = torch.export.export(Constants(), (X,), strict=strict).constants
    assert program.constants.keys() == real.keys()
    assert all(type(constant) is torch.Tensor for constant in program.constants.values())
    assert all(same_bits(program.constants[name], real[name]) for name in real)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_on_a_virtual_device_their_values_are_known(strict):
    program = fe.export(Constants, (X,), target="H100", strict=strict)

    real = torch.export.export(Constants(), (X,), strict=strict).constants
    assert program.constants.keys() == real.keys()
    assert {str(constant.device) for constant in program.constants.values()} == {"cuda:0"}
    assert all(fe.is_fake(constant) for constant in program.constants.values())
    for name, constant in program.constants.items():
        assert constant.stride() == real[name].stride(), name
        assert same_bits(constant_value(constant), real[name]), name


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.a.register_buffer("table", torch.arange(4.0), persistent=False)
        self.b.register_buffer("table", torch.arange(4.0) * 2, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x) + self.a.table
        return self.b(x).add(self.b.table)


def test_with_a_device_map_each_is_what_its_device_asks_for():
    program = fe.export(Split, (X,), target="cpu+H100", device_map={"a": "cpu", "b": "cuda:0"})

    on_cpu, on_gpu = program.constants["a.table"], program.constants["b.table"]
    assert not fe.is_fake(on_cpu)
    assert fe.is_fake(on_gpu)
    assert str(on_gpu.device) == "cuda:0"
    assert on_cpu.tolist() == [0, 1, 2, 3]
    assert constant_value(on_gpu).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("convert", [lambda m: m.to(torch.bfloat16), lambda m: m.half().double()])
def test_a_conversion_after_the_construction_is_part_of_the_value(convert):
    program = fe.export(lambda: convert(Constants()), (X.to(torch.bfloat16),))

    real = dict(convert(Constants()).named_buffers())
    for name in ("inv_freq", "position_ids"):
        assert same_bits(program.constants[name], real[name])


def test_a_default_dtype_is_part_of_the_value():
    program = fe.export(Constants, (X,), dtype=torch.float64)

    assert program.constants["inv_freq"].dtype == torch.float64
    assert program.constants["inv_freq"].tolist() == [100 ** -(i / 4) for i in range(4)]


def test_parameters_and_persistent_buffers_stay_fake():
    program = fe.export(Constants, (X,))

    assert program.state_dict.keys() == {"linear.weight", "linear.bias", "running"}
    assert all(fe.is_fake(tensor) for tensor in program.state_dict.values())


def test_names_of_one_tensor_share_one():
    program = fe.export(Constants, (X,))
    on_gpu = fe.export(Constants, (X,), target="H100")

    assert program.constants["scale"] is program.constants["same_scale"]
    assert on_gpu.constants["scale"] is on_gpu.constants["same_scale"]


@pytest.mark.parametrize("topology", ["cpu", "H100"])
def test_what_was_recovered_is_told_with_its_bytes(topology):
    with emulate(topology):
        found = captured(Constants, device_map="cuda:0" if topology == "H100" else None).recovered

    shared_once = 4 * 4 + 4 * 8 + 16 + 16 * 4 + 2 * 4 * 4 + 16 * 4 + 4 * 4
    assert set(found.names) == set(expected())
    assert (found.bytes, found.unbound, found.is_complete) == (shared_once, (), True)


def test_the_captured_module_keeps_its_own_tensors():
    built = build(Constants)
    buffer, attribute = built.module.inv_freq, built.module.mask
    before = record_of(buffer), record_of(attribute)

    with built.mode:
        x = torch.empty(2, 4)
    capture(built.module, (x,))

    assert built.module.inv_freq is buffer
    assert fe.is_fake(buffer)
    assert (record_of(buffer), record_of(attribute)) == before


def test_a_value_on_a_virtual_device_is_known_without_its_history():
    program = fe.export(Constants, (X,), target="H100")

    assert len(history_of([record_of(program.constants["inv_freq"])])) == 1


def test_a_view_keeps_no_more_memory_than_it_shows():
    class Window(nn.Module):
        def __init__(self):
            super().__init__()
            self.window = torch.arange(100_000.0)[4:8]

        def forward(self, x):
            return x + self.window

    (window,) = fe.export(Window, (X,)).constants.values()

    assert window.tolist() == [4, 5, 6, 7]
    assert window.untyped_storage().nbytes() == 16


LAYOUTS = {
    "transposed": lambda: torch.arange(16.0).view(4, 4).t(),
    "every other": lambda: torch.arange(32.0).view(4, 8)[:, ::2],
    "expanded": lambda: torch.arange(4.0).expand(3, 4),
    "a scalar expanded": lambda: torch.tensor(2.0).expand(3, 4),
    "sliding": lambda: torch.arange(7.0).unfold(0, 4, 1),
    "no elements": lambda: torch.arange(8.0).view(2, 4)[:0],
    "complex": lambda: torch.polar(torch.ones(4), torch.arange(4.0)),
    "not a number": lambda: torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]),
    "narrow": lambda: torch.arange(4.0).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("is_real", [False, True], ids=["fake", "real"])
def test_the_layout_is_that_of_the_real_constant(make, is_real):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.constant = make()

        def forward(self, x):
            return x.sum(), self.constant * 1 if self.constant.dtype.itemsize > 1 else self.constant.float()

    program = fe.export(Holder() if is_real else Holder, (X,))

    (constant,) = program.constants.values()
    assert type(constant) is torch.Tensor
    assert same_bits(constant, make())


class Unbound(nn.Module):
    def __init__(self, make: Callable[[Unbound], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("table", torch.ones(4))
        self.constant = make(self)
        self.register_buffer("known", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.table + self.constant + self.known


WITHOUT_A_VALUE = {
    "computed from a parameter": (lambda m: m.weight.detach() * 2, "parameter", "weight", "aten.mul.Tensor"),
    "a part of a parameter's memory": (lambda m: m.weight.data[:1], "parameter", "weight", None),
    "a part of a persistent buffer's memory": (lambda m: m.table[:1], "parameter", "table", None),
    "a draw": (lambda m: torch.rand(4), "random", None, "aten.rand.default"),
    "never written": (lambda m: torch.empty(4), "unknown", None, None),
}


@pytest.mark.parametrize("topology", ["cpu", "H100"])
@pytest.mark.parametrize(
    ("make", "reason", "weight", "operator"), WITHOUT_A_VALUE.values(), ids=WITHOUT_A_VALUE
)
def test_what_the_code_does_not_determine_stays_unbound(make, reason, weight, operator, topology):
    with emulate(topology):
        result = captured(lambda: Unbound(make), device_map="cuda:0" if topology == "H100" else None)

    (unbound,) = result.recovered.unbound
    assert result.recovered.names == ("known",)
    assert (unbound.name, unbound.reason, unbound.weight, unbound.operator) == (
        "constant",
        reason,
        weight,
        operator,
    )
    assert unbound.span.path == __file__
    assert fe.is_fake(result.program.constants["constant"])
    with pytest.raises(DataReadError, match="a constant without a value"):
        constant_value(result.program.constants["constant"])


def test_a_value_that_is_too_large_is_not_computed(monkeypatch):
    monkeypatch.setattr(constants, "LARGEST_CONSTANT_BYTES", 15)

    result = captured(Split)

    assert [unbound.reason for unbound in result.recovered.unbound] == ["unknown", "unknown"]
    assert result.recovered.unbound[0].detail == "it has 16 bytes; the limit for computing constants is 15"


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.listed = [self.linear.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.listed[0].sum()


@pytest.mark.parametrize("make", [Listed, lambda: fe.build(Listed).module], ids=["factory", "module"])
def test_a_parameter_that_torch_takes_for_a_constant_is_that_parameter(make):
    result = captured(make)

    assert not result.recovered.unbound
    assert not result.program.constants


def test_inside_of_a_fake_mode_it_is_the_same():
    with fe.fake_mode():
        program = fe.export(Constants, (X,))
        with pytest.warns(UnboundConstants):
            incomplete = fe.export(lambda: Unbound(lambda m: torch.rand(4)), (X,))

    real = expected()
    assert all(same_bits(program.constants[name], real[name]) for name in real)
    with pytest.raises(DataReadError):
        constant_value(incomplete.constants["constant"])


def test_a_module_without_data_has_no_values_to_give():
    with torch.device("meta"):
        module = Split()

    with pytest.warns(UnboundConstants, match=r"a\.table \(FE603: .*; b\.table \(FE603: "):
        fe.export(module, (X,))


EDITS = {
    "in place": lambda m: m.a.table.zero_(),
    "through a view": lambda m: m.a.table[1:].mul_(2),
    "by other data": lambda m: setattr(m.a.table, "data", torch.zeros(4)),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_deferred_module_that_was_changed_since_has_no_value_there(edit):
    module = deferred_init(Split)
    with mode_of([module.a.table]):
        edit(module)

    with pytest.warns(UnboundConstants, match=r"1 constant has no value: a\.table \(FE603: ") as caught:
        program = fe.export(module, (X,))

    assert "which was not recorded" in str(caught[0].message)
    assert program.constants["b.table"].tolist() == [0, 2, 4, 6]


def test_a_deferred_module_can_be_exported_and_materialised():
    def make() -> nn.Module:
        torch.manual_seed(7)
        return Constants()

    module = deferred_init(make)

    program = fe.export(module, (X,))

    real = materialize_module(module) or module
    torch.testing.assert_close(bound(program, real)(X), make()(X), rtol=0, atol=0)


SEEDED = {
    "the process": lambda: torch.manual_seed(3) and torch.randn(4),
    "a generator": lambda: torch.randn(4, generator=torch.Generator().manual_seed(3)),
    "after others": lambda: torch.manual_seed(3) and torch.rand(17).normal_() * 0 + torch.rand(17),
}


@pytest.mark.parametrize("draw", SEEDED.values(), ids=SEEDED)
def test_a_draw_with_a_seed_is_that_of_eager_construction(draw):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.noise = draw()

        def forward(self, x):
            return x.sum() + self.noise

    program = fe.export(Noisy, (X,))

    assert same_bits(program.constants["noise"], Noisy().noise)


def test_a_real_module_brings_the_values_of_its_constants():
    torch.manual_seed(0)
    module = Unbound(lambda m: torch.randn(4))

    program = fe.export(module, (X,))

    assert same_bits(program.constants["constant"], module.constant)
    assert fe.is_fake(program.state_dict["weight"])


def test_export_warns_of_each_constant_without_a_value():
    with pytest.warns(UnboundConstants, match=r"1 constant has no value: constant \(FE602: ") as caught:
        fe.export(lambda: Unbound(lambda m: torch.rand(4)), (X,))

    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "\n" not in str(caught[0].message)


def test_a_long_warning_is_cut_with_a_count():
    class Layer(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.register_buffer("noise", torch.rand(4), persistent=False)

        def forward(self, x):
            return super().forward(x) + self.noise

    with pytest.warns(UnboundConstants, match=r"12 constants have no value: 0\.noise .*; and 7 more\. Set"):
        fe.export(lambda: nn.Sequential(*[Layer() for _ in range(12)]), (X,))


def test_check_reports_and_does_not_warn(monkeypatch):
    monkeypatch.delenv("FAKEXPORT_IN_PROCESS")  # It warns of targets that share a process.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = fe.check(lambda: (Unbound(lambda m: torch.rand(4)), (X,)), target=["cpu", "H100"])

    assert [diagnostic.code for diagnostic in report.diagnostics] == ["FE602", "FE904"]
    assert all(verdict.recovered.names == ("known",) for verdict in report.verdicts)


def test_a_value_that_somebody_provides_is_the_programs():
    with pytest.warns(UnboundConstants):
        program = fe.export(lambda: Unbound(lambda m: torch.rand(4)), (X,))

    program.constants["constant"] = torch.full((4,), 5.0)

    assert recover_constants(program) == Recovered(("constant", "known"), 32)


def test_objects_and_real_tensors_are_left_alone():
    program = torch.export.export(Split(), (X,))
    program.constants["object"] = marker = object()
    before = dict(program.constants)

    recovered = recover_constants(program)

    assert recovered == Recovered(("a.table", "b.table"), 32)
    assert program.constants["object"] is marker
    assert all(program.constants[name] is before[name] for name in before)


# What is done with programs goes on working.


def bound(program: ExportedProgram, module: nn.Module) -> nn.Module:
    runnable = program.module()
    runnable.load_state_dict(module.state_dict(), assign=True)
    return runnable


def test_with_its_weights_a_program_computes_what_eager_computes():
    torch.manual_seed(0)
    eager = Constants()

    program = fe.export(Constants, (X,))

    torch.testing.assert_close(bound(program, eager)(X), eager(X), rtol=0, atol=0)


def test_a_decomposed_program_keeps_its_constants():
    program = fe.export(Constants, (X,))

    decomposed = program.run_decompositions()

    assert decomposed.constants.keys() >= program.constants.keys() - {"same_scale"}
    for name in decomposed.constants.keys() & program.constants.keys():
        assert same_bits(decomposed.constants[name], program.constants[name])


def test_a_program_for_a_virtual_device_decomposes_with_its_values():
    with emulate("H100"):
        decomposed = fe.export(Constants, (X,)).run_decompositions()

    assert constant_value(decomposed.constants["inv_freq"]).tolist() == expected()["inv_freq"].tolist()


# Torch asks fake weights for their data when they are copied outside of a fake mode, and refuses those of a
# virtual device.
copies_fake_weights = pytest.mark.filterwarnings(
    "ignore:Accessing the data pointer of FakeTensor:UserWarning"
)


@copies_fake_weights
def test_a_copy_of_a_program_has_its_constants():
    program = fe.export(Constants, (X,))

    copied = copy.deepcopy(program)

    for name, constant in copied.constants.items():
        assert constant is not program.constants[name]
        assert same_bits(constant, program.constants[name]), name


class Large(nn.Module):
    """Buffers above the size from which zeros that are written stay without memory."""

    def __init__(self, rows: int = 2**18) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.register_buffer("cache", torch.zeros(rows, 2), persistent=False)
        self.register_buffer("read", torch.zeros(rows, 2), persistent=False)
        self.register_buffer("marked", torch.zeros(rows, 2), persistent=False)
        self.register_buffer("ones", torch.ones(rows, 2), persistent=False)
        self.marked[1, 1] = 7

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for written in (self.cache, self.marked, self.ones):
            written[0] = self.linear(x)
        return self.cache.sum() + self.read.sum() + self.marked.sum() + self.ones.sum()


@pytest.mark.parametrize("target", ["cpu", "H100"])
def test_large_zeros_that_are_written_take_no_memory_until_they_are_bound(
    target: str, tmp_path: Path
) -> None:
    program = fe.export(Large, (torch.ones(1),), target=target)
    fe.save(program, tmp_path / "model.pt2")
    loaded = fe.load(tmp_path / "model.pt2")
    elsewhere = fe.retarget(loaded, {"cpu": "cuda:0"} if target == "cpu" else {"cuda:0": "cpu"})

    for held in (program, loaded, elsewhere):
        assert constant_value(held.constants["cache"]).untyped_storage().nbytes() == 4
        assert fe.is_fake(held.constants["cache"])
        assert constant_value(held.constants["marked"]).sum() == 7
    assert (tmp_path / "model.pt2").stat().st_size < 4 * 2**21  # The other three are stored.
    weights = {"linear.weight": torch.full((1, 1), 2.0), "linear.bias": torch.ones(1)}
    for held in (program, loaded, elsewhere):
        bound = fe.bind(held, weights, devices="cpu")
        cache = bound.constants["cache"]
        assert (cache.stride(), cache.any().item()) == ((2, 1), False)
        assert bound.module()(torch.ones(1)).item() == 2**19 + 7 + 3 * 2 * 3 - 2
        assert cache[0].tolist() == [3, 3]
