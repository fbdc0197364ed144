"""A trace serves a second target exactly where the model cannot tell its devices from those of the first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.capture import ReuseMismatch
from fakexport.checking import check
from fakexport.devices import emulated_topology
from fakexport.program import diff, facts_of
from fakexport.report import Report

HOPPER, AMPERE, TURING = "H100", "A100", "T4"


class Asking(nn.Module):
    """Adds what it is told of its device."""

    def __init__(self, question: Callable[[torch.Tensor], float]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.question = question

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.question(x)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.projection(x).unflatten(-1, (4, 16)).transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return attended.transpose(1, 2).flatten(2)


class Counted:
    """A factory, and how often it was called."""

    def __init__(self, made: Callable[[], object]) -> None:
        self.made, self.calls = made, 0

    def __call__(self) -> object:
        self.calls += 1
        return self.made()


def attending() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Attending(), (torch.zeros(2, 8, 64),)


def program_of(report: Report, name: str) -> ExportedProgram:
    found = next(verdict.program for verdict in report.verdicts if verdict.target.name == name)
    assert found is not None
    return found


QUESTIONS: dict[str, Callable[[torch.Tensor], float]] = {
    "capability": lambda x: torch.cuda.get_device_capability(x.device)[0],
    "name": lambda x: len(torch.cuda.get_device_name()),
    "memory": lambda x: torch.cuda.mem_get_info()[1] / 2**30,
    "properties": lambda x: torch.cuda.get_device_properties(0).multi_processor_count,
    "bfloat16": lambda x: float(torch.cuda.is_bf16_supported(including_emulation=False)),
    "tf32": lambda x: float(torch.cuda.is_tf32_supported()),
    "accelerator": lambda x: float(torch.accelerator.get_memory_info(0)[0] / 2**30),
    "topology": lambda x: len(emulated_topology().canonical),  # type: ignore[union-attr]
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
@pytest.mark.parametrize("place", ["forward", "constructor"])
def test_what_is_asked_of_a_device_is_answered_for_each(
    question: Callable[[torch.Tensor], float], place: str
) -> None:
    def made() -> tuple[nn.Module, tuple[torch.Tensor]]:
        inputs = (torch.zeros(2, 4, device="cuda"),)
        if place == "forward":
            return Asking(question), inputs
        told = question(inputs[0])
        return Asking(lambda x: told), inputs

    factory = Counted(made)
    both = check(factory, target=[HOPPER, TURING])
    assert factory.calls == 2
    alone = program_of(check(factory, target=TURING), TURING)
    assert first_difference(program_of(both, TURING), alone) is None
    assert first_difference(program_of(both, HOPPER), alone) is not None


def test_a_model_that_asks_nothing_is_built_and_traced_once() -> None:
    factory = Counted(lambda: (Asking(lambda x: 1.0), (torch.zeros(2, 4),)))
    report = check(factory, target=[HOPPER, "H200", AMPERE, TURING, "cpu"])
    assert factory.calls == 2  # The CPU has another name.
    assert all(verdict.is_exportable for verdict in report.verdicts)
    alone = check(factory, target=TURING).verdicts[0]
    shared = report.verdicts[3]
    assert shared.program is not None
    assert alone.program is not None
    assert first_difference(shared.program, alone.program) is None
    assert facts_of(shared.program) == facts_of(alone.program)
    assert (shared.target, shared.memory_left) == (alone.target, alone.memory_left)
    assert facts_of(program_of(report, HOPPER)).topology == "H100-80GB"
    assert [each.second for each in report.differences] == ["H200", AMPERE, TURING, "cpu"]
    for each in report.differences:
        assert each.difference == diff(program_of(report, HOPPER), program_of(report, each.second))
        assert each.difference.is_identical is (each.second != "cpu")


def test_programs_of_one_trace_are_changed_alone() -> None:
    report = check(lambda: (Asking(lambda x: 1.0), (torch.zeros(2, 4),)), target=[HOPPER, AMPERE])
    first, second = (program_of(report, name) for name in (HOPPER, AMPERE))
    before = str(second.graph)
    first.graph.create_node("call_function", torch.ops.aten.relu.default, (), name="added")
    assert str(second.graph) == before


def test_a_rocm_device_is_another_cuda_device() -> None:
    factory = Counted(lambda: (Asking(lambda x: float(torch.version.hip is None)), (torch.zeros(2, 4),)))
    report = check(factory, target=[HOPPER, "MI300X"])
    assert factory.calls == 2
    assert first_difference(program_of(report, HOPPER), program_of(report, "MI300X")) is not None


@pytest.mark.parametrize(
    ("second", "dtype", "dynamic", "calls"),
    [
        (AMPERE, torch.bfloat16, None, 1),  # Another kernel with the same layout.
        (TURING, torch.bfloat16, None, 2),  # No kernel: what is left copies in another place.
        (AMPERE, torch.bfloat16, "auto", 2),  # The choice may leave conditions on sizes.
        ("H200", torch.bfloat16, "auto", 1),
    ],
)
def test_attention_is_compared_by_what_shows(
    second: str, dtype: torch.dtype, dynamic: str | None, calls: int
) -> None:
    factory = Counted(attending)
    both = check(factory, target=[HOPPER, second], dtype=dtype, dynamic_shapes=dynamic)
    assert factory.calls == calls
    for name in (HOPPER, second):
        alone = check(factory, target=name, dtype=dtype, dynamic_shapes=dynamic)
        assert first_difference(program_of(both, name), program_of(alone, name)) is None


def test_a_balanced_map_is_compared_by_its_result() -> None:
    layers = lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))  # noqa: E731
    factory = Counted(lambda: (layers(), (torch.zeros(1, 64),)))
    report = check(factory, target=["2xH100", "2xA100", "H100+T4"], device_map="balanced")
    assert factory.calls == 2
    placed = [dict(verdict.placement) for verdict in report.verdicts]
    assert placed[0] == placed[1] != placed[2]


def test_other_dtypes_maps_and_modes_are_traced_on_their_own() -> None:
    factory = Counted(lambda: (nn.Linear(4, 4), (torch.zeros(1, 4),)))
    rows = [HOPPER, {"topology": AMPERE, "dtype": "float16"}, {"topology": AMPERE, "device_map": "cpu"}]
    assert all(verdict.is_exportable for verdict in check(factory, target=rows).verdicts)
    assert factory.calls == 3
    check(factory, target=[HOPPER, AMPERE], reuse_blocks=False)
    assert factory.calls == 5
    check(factory, target=[HOPPER, AMPERE], strict=True)
    assert factory.calls == 7


def test_a_failure_is_found_for_each_target() -> None:
    def failing(x: torch.Tensor) -> float:
        raise RuntimeError("not here")

    factory = Counted(lambda: (Asking(failing), (torch.zeros(2, 4),)))
    report = check(factory, target=[HOPPER, AMPERE])
    assert not any(verdict.is_exportable for verdict in report.verdicts)
    assert {name for found in report.diagnostics for name in found.targets} == {HOPPER, AMPERE}


def test_the_proof_traces_both_and_compares() -> None:
    factory = Counted(attending)
    assert check(factory, target=[HOPPER, AMPERE], verify_reuse=True).is_clean
    assert factory.calls == 4
    built = iter(range(8))

    def drifting() -> object:
        turn = next(built) // 2  # Each target is built twice, to compare with a trace of every block.
        return Asking(lambda x: float(turn)), (torch.zeros(2, 4),)

    first, *_ = check(drifting, target=[HOPPER, AMPERE], verify_reuse=True).diagnostics
    assert (first.code, first.targets) == ("FE001", (AMPERE,))
    assert ReuseMismatch.__name__ in str(first.notes)
