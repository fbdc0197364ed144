"""What is told about two programs of one model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx import Node
from transformers import AutoModelForCausalLM, MixtralConfig

from fakexport.exporting.interface import ConstantDifference, DeviceChange
from fakexport.exporting.interface.program_difference import RangeDifference
from fakexport.exporting.program import diff, transfers
from tests.unit.exporting.program import small_models
from tests.unit.exporting.program.small_models import MLP, Blocks, export_for


def blocks(activated: tuple[int, ...] = (), **options: Any) -> ExportedProgram:
    return torch.export.export(Blocks(activated), (torch.randn(3, 8),), **options)


def mlp_on(*devices: str) -> ExportedProgram:
    class Placed(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(self.fc1(x).relu().to(self.fc2.weight.device))

    def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
        model = Placed()
        model.fc1, model.fc2 = nn.Linear(8, 16, device=devices[0]), nn.Linear(16, 4, device=devices[-1])
        return model, (torch.randn(3, 8, device=devices[0]),)

    return export_for("cpu+2xH100", make)


def node(program: ExportedProgram, name: str) -> Node:
    return next(node for node in program.graph.nodes if node.name == name)


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "gpt2")), "many_kinds", "branching"],
)
def test_a_program_does_not_differ_from_its_copy(name: str, request: pytest.FixtureRequest) -> None:
    program = request.getfixturevalue(name)

    difference = diff(program, copy.deepcopy(program))

    assert difference.is_identical
    assert difference.is_identical_but_for_devices
    for field in ("operators", "nodes_added", "nodes_removed", "nodes_rewired", "changes", "devices"):
        assert getattr(difference, field) == ()
    for field in ("transfers_added", "transfers_removed", "constants", "signature", "ranges"):
        assert getattr(difference, field) == ()
    assert not difference.is_reordered


def test_another_device_is_the_only_difference() -> None:
    difference = diff(mlp_on("cuda:0"), mlp_on("cuda:1"))

    assert not difference.is_identical
    assert difference.is_identical_but_for_devices
    (change,) = difference.devices
    assert (change.device_a, change.device_b) == ("cuda:0", "cuda:1")
    assert change.count >= 9
    assert difference.signature == difference.changes == difference.nodes_added == ()


def test_a_second_device_adds_one_transfer() -> None:
    single, split = mlp_on("cuda:0"), mlp_on("cuda:0", "cuda:1")

    difference = diff(single, split)

    assert difference.transfers_added == transfers(split)
    assert difference.transfers_removed == ()
    assert DeviceChange("cuda:0", "cuda:1", 4) in difference.devices
    assert diff(split, single).transfers_removed == difference.transfers_added


def test_an_added_operator_is_told_once_for_all_its_modules() -> None:
    difference = diff(blocks(), blocks(activated=(0, 2)))

    (operator,) = difference.operators
    assert (operator.operator, operator.count_a, operator.count_b) == ("aten.sigmoid.default", 0, 2)
    (added,) = difference.nodes_added
    assert (added.operator, added.module_path, added.count) == ("aten.sigmoid.default", "", 2)
    assert added.span is not None
    assert added.span.path == small_models.__file__
    assert (difference.nodes_removed, difference.nodes_rewired, difference.changes) == ((), (), ())


def test_added_nodes_of_repeated_modules_fold_with_a_star() -> None:
    program, changed = blocks(), blocks()
    for relu in [node for node in changed.graph.nodes if node.target == torch.ops.aten.relu.default]:
        with changed.graph.inserting_after(relu):
            added = changed.graph.call_function(torch.ops.aten.neg.default, (relu,))
        added.meta = dict(relu.meta)
        relu.replace_all_uses_with(added, delete_user_cb=lambda user, added=added: user is not added)

    difference = diff(program, changed)

    (group,) = difference.nodes_added
    assert (group.operator, group.module_path, group.count) == ("aten.neg.default", "layers.*", 4)
    assert (difference.nodes_removed, difference.nodes_rewired) == ((), ())


def test_another_literal_is_told_with_both_texts() -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() * self.factor

    first, second = (torch.export.export(Scaled(factor), (torch.randn(3),)) for factor in (1e-5, 1e-6))

    (change,) = diff(first, second).changes

    assert (change.field, change.a, change.b) == ("arguments", "(%, 1e-05)", "(%, 1e-06)")
    assert change.nodes.operator == "aten.mul.Tensor"


def test_other_sizes_are_changes_and_no_other_nodes() -> None:
    def of_batch(size: int) -> ExportedProgram:
        return torch.export.export(Blocks(), (torch.randn(size, 8),))

    difference = diff(of_batch(3), of_batch(5))

    assert difference.nodes_added == difference.nodes_removed == ()
    assert {(change.field, change.a, change.b) for change in difference.changes} == {
        ("shape", "[3, 8]", "[5, 8]")
    }
    assert {change.nodes.module_path for change in difference.changes} == {"layers.*", "layers.*.proj"}
    (of_input, of_output) = difference.signature
    assert (of_input.side, of_input.name, of_input.field) == ("input", "x", "shape")
    assert (of_output.side, of_output.a, of_output.b) == ("output", "[3, 8]", "[5, 8]")


def test_swapped_operands_are_rewired_nodes() -> None:
    class Difference(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.sin() - y.cos()

    program = torch.export.export(Difference(), (torch.randn(3), torch.randn(3)))
    swapped = copy.deepcopy(program)
    sub = node(swapped, "sub")
    sub.args = (sub.args[1], sub.args[0])

    difference = diff(program, swapped)

    assert not difference.is_identical_but_for_devices
    assert [group.operator for group in difference.nodes_rewired] == ["aten.sub.Tensor"]
    assert difference.changes == ()


def test_another_order_of_independent_nodes_is_told() -> None:
    class Both(nn.Module):
        def __init__(self, is_turned: bool) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
            self.is_turned = is_turned

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.is_turned:
                right, left = self.right(x), self.left(x)
            else:
                left, right = self.left(x), self.right(x)
            return left + right

    first, second = (torch.export.export(Both(turned), (torch.randn(3, 4),)) for turned in (False, True))

    difference = diff(first, second)

    assert difference.is_reordered
    assert not difference.is_identical
    assert difference.nodes_added == difference.nodes_removed == difference.nodes_rewired == ()


def test_programs_without_module_paths_are_still_matched() -> None:
    program, bare = blocks(), blocks(activated=(1,))
    for stripped in bare.graph.nodes:
        stripped.meta.pop("nn_module_stack", None)

    difference = diff(program, bare)

    assert [(group.operator, group.count) for group in difference.nodes_added] == [
        ("aten.sigmoid.default", 1)
    ]
    assert difference.nodes_removed == ()


def test_an_operator_inside_a_branch_is_told(branching: ExportedProgram) -> None:
    changed = copy.deepcopy(branching)
    branch = changed.graph_module.false_graph_0
    cos = next(node for node in branch.graph.nodes if "cos" in node.name)
    cos.target = torch.ops.aten.tan.default

    difference = diff(branching, changed)

    counts = [(each.operator, each.count_a, each.count_b) for each in difference.operators]
    assert counts == [("aten.cos.default", 1, 0), ("aten.tan.default", 0, 1)]
    assert [group.operator for group in difference.nodes_added] == ["aten.tan.default"]


class WithConstant(nn.Module):
    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.shift = torch.tensor(values)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


@pytest.mark.parametrize(
    ("values", "difference"),
    [
        ([1.0, 2.5, 3.0], ConstantDifference("shift", "value", "2.0 at [1]", "2.5 at [1]")),
        ([1.0], ConstantDifference("shift", "shape", "[3]", "[1]")),
    ],
)
def test_another_constant_is_told(values: list[float], difference: ConstantDifference) -> None:
    first, second = (
        torch.export.export(WithConstant(numbers), (torch.randn(3),)) for numbers in ([1.0, 2.0, 3.0], values)
    )

    assert diff(first, second).constants == (difference,)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.float16, torch.float8_e4m3fn, torch.complex64]
)
def test_values_of_every_dtype_are_compared(dtype: torch.dtype) -> None:
    def program(values: list[int]) -> ExportedProgram:
        model = WithConstant([])
        model.shift = torch.tensor(values).to(dtype)
        model.forward = lambda x: (x, model.shift.clone())  # type: ignore[method-assign]
        return torch.export.export(model, (torch.randn(3),))

    assert diff(program([0, 1]), program([0, 1])).constants == ()
    assert [found.field for found in diff(program([0, 1]), program([0, 0])).constants] == ["value"]


def test_a_constant_without_data_differs_from_one_with_data() -> None:
    def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
        return WithConstant([1.0, 2.0, 3.0]), (torch.randn(3),)

    fake = export_for("cpu", make)
    real = torch.export.export(WithConstant([4.0, 5.0, 6.0]), (torch.randn(3),))

    difference = diff(fake, real)

    assert [(found.name, found.field, found.a) for found in difference.constants] == [
        ("shift", "value", "unknown")
    ]
    assert not difference.is_identical


def test_missing_weights_and_constants_are_told_by_name(many_kinds: ExportedProgram) -> None:
    with_bias, without = (
        torch.export.export(
            nn.Sequential(*(nn.Linear(4, 4, bias=has_bias) for _ in range(3))), (torch.randn(2, 4),)
        )
        for has_bias in (True, False)
    )

    (missing,) = diff(with_bias, without).signature

    assert (missing.kind, missing.name, missing.field) == ("parameter", "*.bias", "presence")
    assert (missing.a, missing.b, missing.count) == ("float32[4]", "", 3)
    names = {constant.name for constant in diff(with_bias, many_kinds).constants}
    assert names == {"shift", "lifted_tensor_0"}


def test_other_ranges_and_structures_are_told() -> None:
    class Wrapped(Blocks):
        def forward(self, x: torch.Tensor) -> Any:
            return {"hidden": super().forward(x)}

    sizes = [{"x": {0: Dim("batch", min=2, max=limit)}} for limit in (64, 128)]
    wrapped = torch.export.export(Wrapped(), (torch.randn(3, 8),), dynamic_shapes=sizes[0])

    difference = diff(blocks(dynamic_shapes=sizes[0]), blocks(dynamic_shapes=sizes[1]))
    other_outputs = diff(blocks(dynamic_shapes=sizes[0]), wrapped)

    assert difference.ranges == (RangeDifference("s0", "[2, 64]", "[2, 128]"),)
    assert not difference.is_identical_but_for_devices
    assert [(found.field, found.name) for found in other_outputs.signature] == [
        ("presence", "output"),
        ("presence", "hidden"),
        ("structure", ""),
    ]


@pytest.mark.slow
def test_ten_thousand_nodes_are_compared_in_seconds() -> None:
    def long(is_changed: bool) -> ExportedProgram:
        program = blocks()
        output = program.graph.output_node()
        (last,) = output.all_input_nodes
        with program.graph.inserting_before(output):
            for position in range(10_000):
                target = torch.ops.aten.sin.default if position % 3 else torch.ops.aten.cos.default
                copied = program.graph.call_function(target, (last,))
                copied.meta = dict(last.meta)
                last = copied
                if is_changed and position % 100 == 50:
                    last = program.graph.call_function(torch.ops.aten.relu.default, (last,))
                    last.meta = dict(copied.meta)
        output.replace_input_with(output.all_input_nodes[0], last)
        return program

    first, second = long(is_changed=False), long(is_changed=True)

    difference = diff(first, second)

    assert [(group.operator, group.count) for group in difference.nodes_added] == [("aten.relu.default", 100)]
    assert difference.nodes_removed == difference.nodes_rewired == ()


@pytest.mark.slow
def test_experts_of_mixtral_multiply_otherwise_on_an_older_device() -> None:
    def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
        config = MixtralConfig(
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
            use_cache=False,
            dtype=torch.bfloat16,
        )
        with torch.device("cuda:0"):
            model = AutoModelForCausalLM.from_config(config)
            return model, (torch.zeros(2, 8, dtype=torch.long),)

    difference = diff(export_for("T4", make), export_for("H100", make))

    assert [each.operator for each in difference.operators if not each.count_a] == [
        "aten._grouped_mm.default"
    ]
    (added,) = difference.nodes_added
    assert (added.module_path, added.count) == ("model.layers.*.mlp.experts", 4)
    assert added.module_path in [group.module_path for group in difference.nodes_removed]
    assert difference.devices == difference.signature == ()
