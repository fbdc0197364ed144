"""A fault in a program is found at its node; a program without one is equal, decomposed or not."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export
from torch.fx import Node

import fakexport as fe
from fakexport.deploy.comparison import compare
from fakexport.deploy.comparison.error import tensor_error
from fakexport.exporting.program import source_span
from fakexport.report import json_text, render_comparison, to_dict
from tests.real_constants import tiny_source
from tests.unit.models.sources.tiny_configs import TINY
from tests.written_source import real_program

Subject = tuple[nn.Module, ExportedProgram, tuple[Any, ...], dict[str, Any]]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.second = nn.Linear(16, 16)
        self.table = torch.arange(16.0)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, *, scale):
        self.calls.add_(1)
        hidden = self.norm(torch.relu(self.first(x)))
        mixed = hidden - self.second(hidden) / 3.0
        return {"out": mixed * scale + self.table * self.calls, "best": mixed.argmax(-1)}


def mlp() -> Subject:
    torch.manual_seed(0)
    model, args, kwargs = Mlp().eval(), (torch.randn(5, 8),), {"scale": torch.tensor(1.5)}
    return model, export(model, args, kwargs), args, kwargs


def transformer(name: str, folder: Path) -> Subject:
    source = tiny_source(name, TINY[name][0], folder)
    program, inputs = real_program(source)
    torch.manual_seed(0)  # As `real_program` has it.
    return source.factory(), program, inputs.args, dict(inputs.kwargs)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory) -> dict[str, Subject]:
    found = {"mlp": mlp()}
    if pytest.importorskip("transformers"):
        folder = tmp_path_factory.mktemp("configs")
        found |= {name: transformer(name, folder) for name in ("gpt2", "vit")}
    return found


MODELS = ("mlp", "gpt2", "vit")


@pytest.mark.parametrize("name", MODELS)
def test_a_program_of_the_model_is_equal_bit_for_bit(name, subjects):
    model, program, args, kwargs = subjects[name]

    found = compare(model, program, args, kwargs)

    assert found.is_identical
    assert found.is_equal
    assert found.first_difference is found.first_divergence is None
    assert found.kernels > 5
    assert all(output.error.is_equal for output in found.outputs)


@pytest.mark.parametrize("name", ["mlp", "vit"])  # torch itself cannot decompose this GPT-2
def test_what_decompositions_change_is_rounding(name, subjects):
    model, program, args, kwargs = subjects[name]

    found = compare(model, program.run_decompositions(), args, kwargs)

    assert found.is_equal
    assert found.unmatched > 0


def epsilon(node: Node) -> bool:
    """Another epsilon in a normalisation."""
    if "layer_norm" not in str(node.target):
        return False
    node.args = (*node.args[:4], 1e-4, *node.args[5:])
    return True


def operands(node: Node) -> bool:
    """Swapped operands."""
    names = ("aten.sub.Tensor", "aten.scaled_dot_product_attention.default")
    if str(node.target) not in names:
        return False
    node.args = (node.args[1], node.args[0], *node.args[2:])
    return True


def number(node: Node) -> bool:
    """A wrong number among the arguments."""
    if "scale" in node.kwargs:
        node.kwargs = {**node.kwargs, "scale": node.kwargs["scale"] * 1.01}
        return True
    if str(node.target) != "aten.div.Tensor" or not isinstance(node.args[1], float):
        return False
    node.args = (node.args[0], node.args[1] * 1.01)
    return True


def operator(node: Node) -> bool:
    """Another operator; not where it gives the same, as for the addition of zero."""
    if str(node.target) != "aten.add.Tensor" or not all(isinstance(arg, Node) for arg in node.args):
        return False
    node.target = torch.ops.aten.sub.Tensor
    return True


def faulty(
    program: ExportedProgram, inject: Callable[[Node], bool], skipped: int
) -> tuple[ExportedProgram, Node]:
    """A copy of a program with a fault in the node after so many that could have it, and that node."""
    changed = copy.deepcopy(program)
    calls = [node for node in changed.graph.nodes if node.op == "call_function"]
    for node in calls:
        before = (node.target, node.args, node.kwargs)
        if inject(node):
            if skipped == 0:
                return changed, node
            skipped -= 1
            node.target, node.args, node.kwargs = before
    raise AssertionError("no node can have this fault")


@pytest.mark.parametrize("inject", [epsilon, operands, number, operator], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(("name", "skipped"), [("mlp", 0), ("gpt2", 0), ("gpt2", 1), ("vit", 0), ("vit", 1)])
def test_a_fault_is_found_at_its_node(name, inject, skipped, subjects):
    model, program, args, kwargs = subjects[name]
    wrong, node = faulty(program, inject, skipped)

    found = compare(model, wrong, args, kwargs)

    assert not found.is_equal
    assert found.first_divergence is not None
    assert found.first_divergence.node == node.name
    assert found.first_divergence.span == source_span(node)
    assert found.first_divergence.span is not None
    assert found.first_divergence.module_path == _path(node)
    assert found.first_divergence.error.program > 4 * found.first_divergence.error.eager
    assert found.first_difference == found.first_divergence


def _path(node: Node) -> str:
    return list(node.meta["nn_module_stack"].values())[-1][0]


def test_a_wrong_constant_is_found_where_it_is_used(subjects):
    model, program, args, kwargs = subjects["mlp"]
    wrong = copy.deepcopy(program)
    wrong.constants["table"] = wrong.constants["table"] + torch.eye(16)[3]

    found = compare(model, wrong, args, kwargs)

    assert found.first_divergence is not None
    (user,) = next(node for node in program.graph.nodes if node.name == "c_table").users
    assert found.first_divergence.node == user.name


def test_a_wrong_weight_is_found_in_its_module(subjects):
    model, program, args, kwargs = subjects["gpt2"]
    wrong = copy.deepcopy(program)
    name = "transformer.h.1.mlp.c_fc.weight"
    wrong.state_dict[name] = nn.Parameter(wrong.state_dict[name].detach() * 1.5)

    found = compare(model, wrong, args, kwargs)

    assert found.first_divergence is not None
    assert found.first_divergence.module_path == "transformer.h.1.mlp.c_fc"
    assert found.first_divergence.operator == "aten.addmm.default"


def test_the_model_and_the_program_are_left_as_they_were(subjects):
    model, program, args, kwargs = subjects["mlp"]
    calls, given = model.calls.clone(), copy.deepcopy((args, kwargs))

    for _ in range(2):
        assert compare(model, program, args, kwargs).is_identical

    assert torch.equal(model.calls, calls)
    assert torch.equal(program.state_dict["calls"], torch.zeros(()))
    assert not model._forward_hooks
    assert torch.equal(args[0], given[0][0])


def test_half_precision_is_held_against_double(subjects):
    model, _, args, kwargs = subjects["mlp"]
    half = copy.deepcopy(model).to(torch.bfloat16)
    half.table = half.table.to(torch.bfloat16)
    args, kwargs = (args[0].bfloat16(),), {"scale": kwargs["scale"].bfloat16()}
    program = export(half, args, kwargs)

    found = compare(half, program, args, kwargs)
    wrong = compare(half, faulty(program, operands, 0)[0], args, kwargs)

    assert found.is_identical
    assert 1e-4 < found.outputs[0].error.eager < 0.2
    assert wrong.first_divergence is not None
    assert wrong.first_divergence.operator == "aten.sub.Tensor"


class SingleOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        if self.fc.weight.dtype is torch.float64:
            raise RuntimeError("no kernel for double")
        return self.fc(x).sin()


def test_a_model_that_does_not_run_in_double_precision_is_compared_without(subjects):
    model, args = SingleOnly(), (torch.randn(4, 8),)
    program = export(model, args)

    found = compare(model, program, args)
    program.state_dict["fc.bias"] = nn.Parameter(program.state_dict["fc.bias"].detach() + 1)
    wrong = compare(model, program, args)

    assert found.is_identical
    assert found.outputs[0].error.program is None
    assert found.assumptions == (
        "reference: none; the model does not run in float64: RuntimeError: no kernel for double",
    )
    assert wrong.first_divergence is not None
    assert wrong.first_divergence.operator == "aten.linear.default"


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            y = self.fc(x)
        return y * 2 if x.shape[0] > 2 else y


def test_modes_are_run(subjects):
    model, args = Branching(), (torch.randn(4, 8),)

    assert compare(model, export(model, args), args).is_identical


class Chooses(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda kept: kept.sin() + 1, lambda kept: kept.cos() - 1, (x,))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_branch_that_a_condition_takes_is_compared(sign):
    program = export(Chooses(), (torch.ones(3),))

    found = compare(Chooses(), program, (sign * torch.ones(3),))

    assert found.is_identical
    assert found.kernels >= 4  # The sum, the comparison, and both operators of the branch.


class Weighted(nn.Module):
    def forward(self, x, *, first, second, scale=1.0):
        return x + first - 2 * second * scale


@pytest.mark.parametrize("exporter", [export, fe.export], ids=["torch", "fakexport"])
def test_keyword_arguments_are_matched_by_name(exporter):
    x, first, second = torch.rand(3, 4)
    program = exporter(Weighted(), (x,), {"first": first, "second": second})

    assert compare(Weighted(), program, (x,), {"second": second, "first": first}).is_identical
    for fault, arguments in {
        "missing": {"first": first},
        "an unexpected argument": {"first": first, "second": second, "third": x},
        "accepts no other value": {"first": first, "second": second, "scale": 2.0},
    }.items():
        about = "the program expects" if exporter is export else fault
        with pytest.raises((TypeError, ValueError), match=about):
            compare(Weighted(), program, (x,), arguments)


def test_another_number_of_outputs_is_one_line(subjects):
    model, program, args, kwargs = subjects["mlp"]
    other = copy.deepcopy(model)
    other.forward = lambda x, *, scale: x

    with pytest.raises(ValueError, match="the model returns 1 outputs, but the program returns 2"):
        compare(other, program, args, kwargs)


def test_the_text_says_where_and_the_json_has_everything(subjects):
    model, program, args, kwargs = subjects["mlp"]
    wrong, node = faulty(program, epsilon, 0)
    found = compare(model, wrong, args, kwargs)

    text = render_comparison(found, width=100)
    data = json.loads(json_text(to_dict(found)))

    assert f"  node    {node.name} = aten.layer_norm.default\n" in text
    assert "  module  norm\n" in text
    assert text.endswith("kernels compared\n")
    assert data["schema"] == "fakexport.compare/1"
    assert data["first_divergence"]["node"] == node.name
    assert data["first_divergence"]["span"]["line"] == source_span(node).line
    assert data["is_equal"] is False
    assert [output["name"] for output in data["outputs"]] == ["out", "best"]


@pytest.mark.parametrize(
    ("eager", "program", "exact", "is_equal", "is_close"),
    [
        (torch.ones(3), torch.ones(3), torch.ones(3).double(), True, True),
        (torch.ones(3), torch.ones(3) + 2e-7, torch.ones(3).double(), False, True),
        (torch.ones(3), torch.ones(3) + 1e-6, torch.ones(3).double(), False, False),
        (torch.ones(3) + 1e-6, torch.ones(3) - 2e-6, torch.ones(3).double(), False, True),
        (torch.ones(3), torch.ones(3) + 2e-7, None, False, True),
        (torch.tensor([math.nan, math.inf]), torch.tensor([math.nan, math.inf]), None, True, True),
        (torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0]), None, False, False),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), None, False, False),
        (torch.tensor([0.0]), torch.tensor([-0.0]), None, False, True),
        (torch.ones(3).to(torch.float8_e4m3fn), torch.ones(3).to(torch.float8_e4m3fn), None, True, True),
        (torch.ones(3).to(torch.float8_e4m3fn), torch.zeros(3).to(torch.float8_e4m3fn), None, False, False),
        (torch.tensor([1]), torch.tensor([2]), None, False, False),
        (torch.ones(3), torch.ones(4), None, False, False),
        (torch.ones(3), torch.ones(3).double(), None, False, False),
        (torch.ones(0), torch.ones(0), None, True, True),
        (3, 3, None, True, True),
        (3, 4, None, False, False),
        (None, None, None, True, True),
    ],
)
def test_two_values_are_equal_or_close_or_neither(eager, program, exact, is_equal, is_close):
    error = tensor_error(eager, program, exact)

    assert (error.is_equal, error.is_close) == (is_equal, is_close)
