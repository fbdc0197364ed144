"""The text of a program that two processes can compare."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from fakexport.exporting.program import walk
from tests.forked import run_python
from tests.same_nodes import canonical_lines, nodes_equal
from tests.unit.exporting.program.small_models import BATCH, MLP, export_many_kinds

ROOT = Path(__file__).parents[4]


def test_an_mlp_reads_as_its_graph() -> None:
    program = torch.export.export(MLP(), (torch.randn(3, 8),), dynamic_shapes=BATCH)

    assert canonical_lines(program) == (
        "%0 = placeholder(PARAMETER 'fc1.weight') -> float32[16, 8]{8, 1} cpu",
        "%1 = placeholder(PARAMETER 'fc1.bias') -> float32[16]{1} cpu",
        "%2 = placeholder(PARAMETER 'fc2.weight') -> float32[4, 16]{16, 1} cpu",
        "%3 = placeholder(PARAMETER 'fc2.bias') -> float32[4]{1} cpu",
        "%4 = placeholder(USER_INPUT 'x') -> float32[s0, 8]{8, 1} cpu",
        "%5 = aten.linear.default(%4, %0, %1) -> float32[s0, 16]{16, 1} cpu",
        "%6 = aten.relu.default(%5) -> float32[s0, 16]{16, 1} cpu",
        "%7 = aten.linear.default(%6, %2, %3) -> float32[s0, 4]{4, 1} cpu",
        "%8 = output([%7]) -> None",
        "output 0 USER_OUTPUT 'output' = %7",
        "inputs TreeSpec(tuple, None, [TreeSpec(tuple, None, [*]), TreeSpec(dict, [], [])])",
        "outputs *",
        "s0 in [2, 64]",
    )


def test_every_node_has_one_line_and_its_index(gpt2: ExportedProgram) -> None:
    nodes = [
        line.strip() for line in canonical_lines(gpt2) if " = " in line and line.lstrip().startswith("%")
    ]

    assert len(nodes) == sum(1 for _ in walk(gpt2))
    assert [line.split(" ")[0] for line in nodes] == [f"%{index}" for index in range(len(nodes))]


@pytest.mark.parametrize(
    "name", [pytest.param("llama", marks=pytest.mark.slow), "gpt2", "many_kinds", "branching", "two_devices"]
)
def test_nothing_of_the_machine_is_in_it(name: str, request: pytest.FixtureRequest) -> None:
    text = "\n".join(canonical_lines(request.getfixturevalue(name)))

    assert not re.search(r"0x[0-9a-f]{6,}|site-packages|\.py\b|/work|\x01|\x02", text)


def test_devices_are_written_with_their_index(two_devices: ExportedProgram) -> None:
    text = "\n".join(canonical_lines(two_devices))

    assert "device=device(cuda:1)" in text
    assert "wrap_with_autocast('cuda', torch.bfloat16" in text
    assert "{8, 1} cuda:0" in text


def test_another_process_writes_the_same(many_kinds: ExportedProgram) -> None:
    script = (
        "from tests.unit.exporting.program.small_models import export_many_kinds\n"
        "from tests.same_nodes import canonical_lines\n"
        "print('\\n'.join(canonical_lines(export_many_kinds())))"
    )

    other = run_python(script, folder=ROOT)  # Its hashes have another seed.

    assert other.returncode == 0, other.stderr
    assert other.stdout.splitlines() == list(canonical_lines(many_kinds))


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "gpt2")), "many_kinds", "branching"],
)
def test_a_loaded_program_equals_the_saved_one(name: str, request: pytest.FixtureRequest, tmp_path) -> None:
    program = request.getfixturevalue(name)
    torch.export.save(program, tmp_path / "model.pt2")

    assert nodes_equal(program, torch.export.load(tmp_path / "model.pt2")) == ()


def test_names_of_nodes_do_not_matter_and_the_order_of_keywords_does() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros(3, device="cpu", pin_memory=False)

    program = torch.export.export(Model(), (torch.randn(3),))
    changed = copy.deepcopy(program)
    zeros = next(node for node in changed.graph.nodes if node.name == "zeros")
    zeros.name = "nothing"
    assert nodes_equal(program, changed) == ()

    zeros.kwargs = dict(reversed(zeros.kwargs.items()))

    ((line, _),) = nodes_equal(program, changed)
    assert "zeros.default([3], device=device(cpu), pin_memory=False)" in line


def test_symbols_are_numbered_by_use_and_not_by_torch() -> None:
    class Model(nn.Module):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return left + 1, right + 1

    class Renamed(nn.Module):
        def forward(self, one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return one + 1, other + 1

    inputs, sizes = (torch.randn(3, 2), torch.randn(5, 2)), ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    first, second = (
        torch.export.export(model, inputs, dynamic_shapes=sizes) for model in (Model(), Renamed())
    )
    assert first.range_constraints.keys() != second.range_constraints.keys()

    calls = [[line for line in canonical_lines(program) if "aten" in line] for program in (first, second)]

    assert calls[0] == calls[1]
    assert "float32[s0, 2]" in calls[0][0]
    assert "float32[s1, 2]" in calls[0][1]


def test_an_input_that_is_a_device_name_is_written_out() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, device: str) -> torch.Tensor:
            return x.to(device)

    lines = canonical_lines(torch.export.export(Model(), (torch.randn(3), "cpu")))

    assert "%1 = placeholder(USER_INPUT 'device' = 'cpu') -> 'cpu'" in lines


def test_messages_of_asserts_are_left_out() -> None:
    lines = canonical_lines(export_many_kinds())

    asserts = [line for line in lines if "_assert_scalar" in line]
    assert asserts
    assert all(line.endswith(", '...') -> None") for line in asserts)
