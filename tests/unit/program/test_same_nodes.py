"""The strict comparison, node by node."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram
from torch.fx import Node

from fakexport.program.canonical import canonical_lines
from tests.same_nodes import nodes_equal
from tests.unit.program.small_models import MLP, Branching, export_for, export_many_kinds


def mlp(device: str = "cuda:0", **options: Any) -> ExportedProgram:
    def make() -> tuple[MLP, tuple[torch.Tensor]]:
        with torch.device(device):
            return MLP(), (torch.randn(3, 8),)

    return export_for("cpu+2xH100", make, **options)


def node(program: ExportedProgram, name: str) -> Node:
    return next(node for node in program.graph.nodes if node.name == name)


def test_a_program_equals_itself_and_its_copy(many_kinds: ExportedProgram) -> None:
    assert nodes_equal(many_kinds, many_kinds) == ()
    assert nodes_equal(many_kinds, copy.deepcopy(many_kinds)) == ()


@pytest.mark.slow
def test_two_exports_of_one_model_are_equal(many_kinds: ExportedProgram, branching: ExportedProgram) -> None:
    assert nodes_equal(many_kinds, export_many_kinds()) == ()
    assert nodes_equal(branching, torch.export.export(Branching(), (torch.randn(3, 4),))) == ()


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "gpt2")), "many_kinds", "branching"],
)
def test_a_loaded_program_equals_the_saved_one(name: str, request: pytest.FixtureRequest, tmp_path) -> None:
    program = request.getfixturevalue(name)
    torch.export.save(program, tmp_path / "model.pt2")

    assert nodes_equal(program, torch.export.load(tmp_path / "model.pt2")) == ()


def test_names_of_nodes_do_not_matter() -> None:
    program, renamed = mlp(), mlp()
    node(renamed, "relu").name = "activation"

    assert nodes_equal(program, renamed) == ()


def _other_operator(program: ExportedProgram) -> None:
    node(program, "relu").target = torch.ops.aten.sigmoid.default


def _other_input(program: ExportedProgram) -> None:
    node(program, "linear_1").update_arg(0, node(program, "linear"))


def _other_shape(program: ExportedProgram) -> None:
    relu = node(program, "relu")
    relu.meta["val"] = relu.meta["val"].unsqueeze(0)


def _other_stride(program: ExportedProgram) -> None:
    relu = node(program, "relu")
    relu.meta["val"] = relu.meta["val"].t().contiguous().t()


def _other_dtype(program: ExportedProgram) -> None:
    relu = node(program, "relu")
    relu.meta["val"] = relu.meta["val"].to(torch.float16)


def _other_literal(program: ExportedProgram) -> None:
    relu = node(program, "relu")
    relu.args = (*relu.args, 1.0)


@pytest.mark.parametrize(
    ("change", "name", "field"),
    [
        (_other_operator, "relu", "operator"),
        (_other_input, "linear_1", "arguments"),
        (_other_literal, "relu", "arguments"),
        (_other_shape, "relu", "value"),
        (_other_stride, "relu", "value"),
        (_other_dtype, "relu", "value"),
    ],
)
def test_each_kind_of_change_is_found_at_its_node(
    change: Callable[[ExportedProgram], None], name: str, field: str
) -> None:
    program, changed = mlp("cpu"), mlp("cpu")
    change(changed)

    mismatches = nodes_equal(program, changed)

    assert [(mismatch.field, mismatch.node_a, mismatch.node_b) for mismatch in mismatches] == [
        (field, name, name)
    ]
    assert mismatches[0].a != mismatches[0].b


def test_the_order_of_keywords_matters() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros(3, device="cpu", pin_memory=False)

    program = torch.export.export(Model(), (torch.randn(3),))
    turned = copy.deepcopy(program)
    zeros = node(turned, "zeros")
    zeros.kwargs = dict(reversed(zeros.kwargs.items()))

    (mismatch,) = nodes_equal(program, turned)

    assert mismatch.field == "arguments"
    assert mismatch.a == "([3], device=device(cpu), pin_memory=False)"


def test_every_node_of_another_device_is_told() -> None:
    mismatches = nodes_equal(mlp("cuda:0"), mlp("cuda:1"))

    assert {mismatch.field for mismatch in mismatches} == {"value"}
    assert len(mismatches) == 8
    assert all(mismatch.a.replace("cuda:0", "cuda:1") == mismatch.b for mismatch in mismatches)


def test_other_ranges_and_signatures_are_told() -> None:
    program = mlp(dynamic_shapes={"x": {0: Dim("batch", min=2, max=64)}})
    wider = mlp(dynamic_shapes={"x": {0: Dim("batch", min=2, max=128)}})
    renamed = mlp(dynamic_shapes={"x": {0: Dim("batch", min=2, max=64)}})
    renamed.graph_signature.input_specs[0].target = "first.weight"

    (of_range,) = nodes_equal(program, wider)
    (of_name,) = nodes_equal(program, renamed)

    assert (of_range.field, of_range.a, of_range.b) == ("range", "s0 in [2, 64]", "s0 in [2, 128]")
    assert "first.weight" in of_name.b


def test_an_added_node_is_told_first_and_the_list_is_cut() -> None:
    program, longer = mlp(), mlp()
    relu = node(longer, "relu")
    with longer.graph.inserting_after(relu):
        added = longer.graph.call_function(torch.ops.aten.sigmoid.default, (relu,))
    added.meta = dict(relu.meta)
    node(longer, "linear_1").update_arg(0, added)

    mismatches = nodes_equal(program, longer, limit=2)

    assert len(mismatches) == 2
    assert (mismatches[0].field, mismatches[0].a, mismatches[0].b) == ("node_count", "9", "10")
    assert mismatches[1].index == 7


@pytest.mark.slow
def test_no_mismatch_means_equal_lines(llama: ExportedProgram, gpt2: ExportedProgram) -> None:
    again = copy.deepcopy(llama)

    assert nodes_equal(llama, again) == ()
    assert canonical_lines(llama) == canonical_lines(again)
    assert nodes_equal(llama, gpt2)
    assert canonical_lines(llama) != canonical_lines(gpt2)
