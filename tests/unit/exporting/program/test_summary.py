"""What is counted in a program."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fakexport.exporting.interface import SymbolRange
from fakexport.exporting.program import summarise, summary_of
from tests.unit.exporting.program.small_models import MLP


def all_nodes(program: ExportedProgram) -> list[torch.fx.Node]:
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, GraphModule)]
    return [node for graph in graphs for node in graph.nodes]


def test_nodes_and_operators_are_those_of_the_graph(llama: ExportedProgram) -> None:
    summary = summarise(llama)

    calls = [node for node in all_nodes(llama) if node.op == "call_function"]
    overloads = Counter(str(node.target) for node in calls if hasattr(node.target, "overloadpacket"))
    assert summary.node_count == len(all_nodes(llama))
    assert summary.call_count == len(calls) == sum(summary.operators.values())
    assert {name: n for name, n in summary.operators.items() if name.startswith("aten.")} == overloads
    assert list(summary.operators) == sorted(summary.operators)


def test_operators_of_both_branches_count(branching: ExportedProgram) -> None:
    operators = summarise(branching).operators

    assert operators["higher_order.cond"] == 1
    assert operators["operator.getitem"] == 1
    assert (operators["aten.sin.default"], operators["aten.cos.default"]) == (1, 1)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_weights_are_those_of_the_model_with_tied_ones_once(
    name: str, request: pytest.FixtureRequest
) -> None:
    model: nn.Module = request.getfixturevalue(f"{name}_model")
    program: ExportedProgram = request.getfixturevalue(name)

    summary = summarise(program)

    parameters, buffers = list(model.parameters()), list(model.buffers())
    assert summary.parameters.count == len(parameters)
    assert summary.parameters.elements == sum(parameter.numel() for parameter in parameters)
    assert summary.parameters.bytes_per_device == {"cpu": sum(p.nbytes for p in parameters)}
    assert (summary.buffers.count, summary.buffers.total_bytes) == (
        len(buffers),
        sum(buffer.nbytes for buffer in buffers),
    )


def test_every_kind_of_tensor_counts_under_its_own(many_kinds: ExportedProgram) -> None:
    summary = summarise(many_kinds)

    assert (summary.parameters.count, summary.parameters.elements) == (2, 16 + 4)
    assert (summary.buffers.count, summary.buffers.elements) == (2, 8)
    assert (summary.constants.count, summary.constants.elements) == (2, 8)
    assert summary.constants.bytes_per_device == {"cpu": 32}
    assert (summary.state.count, summary.state.elements) == (1, 4)  # of the buffers, the one that is written
    assert summarise(many_kinds.run_decompositions({})).state == summary.state


def test_inputs_tell_symbols_and_literals(many_kinds: ExportedProgram) -> None:
    x, times = summarise(many_kinds).inputs

    symbol = str(
        next(iter(many_kinds.graph.nodes)).graph.find_nodes(op="placeholder")[-2].meta["val"].shape[0]
    )
    assert (x.name, x.kind, x.dtype, x.shape, x.device) == (
        "x",
        "user_input",
        "float32",
        (symbol, "4"),
        "cpu",
    )
    assert (times.name, times.dtype, times.shape, times.device, times.value) == (
        "times",
        "int",
        None,
        None,
        "3",
    )


def test_outputs_have_the_names_under_which_they_are_returned(many_kinds: ExportedProgram) -> None:
    hidden, size, places = summarise(many_kinds).outputs

    assert (hidden.name, hidden.dtype, hidden.shape and hidden.shape[1]) == ("hidden", "float32", "4")
    assert (size.name, size.dtype, size.shape) == ("extra.0", "int", None)
    assert size.value == hidden.shape[0]  # type: ignore[index]
    assert (places.name, places.dtype, places.shape) == ("extra.1", "int64", ("u0", "2"))


def test_a_changed_buffer_is_an_output_under_its_own_name(many_kinds: ExportedProgram) -> None:
    decomposed = many_kinds.run_decompositions({})

    outputs = summarise(decomposed).outputs

    assert [(output.kind, output.name) for output in outputs][:2] == [
        ("buffer_mutation", "steps"),
        ("user_output", "hidden"),
    ]


def test_library_outputs_have_their_field_names(llama: ExportedProgram) -> None:
    assert [output.name for output in summarise(llama).outputs] == ["logits"]


def test_a_single_tensor_is_called_output() -> None:
    program = torch.export.export(MLP(), (torch.randn(3, 8),))

    (output,) = summarise(program).outputs
    assert (output.name, output.shape) == ("output", ("3", "4"))


def test_ranges_are_numbers_or_open(llama: ExportedProgram, many_kinds: ExportedProgram) -> None:
    assert list(summarise(llama).range_constraints.values()) == [SymbolRange(2, None)] * 2
    assert SymbolRange(2, 64) in summarise(many_kinds).range_constraints.values()


def test_bytes_and_devices_are_told_apart(two_devices: ExportedProgram) -> None:
    summary = summarise(two_devices)

    assert summary.devices == ("cpu", "cuda:0", "cuda:1")
    assert summary.parameters.bytes_per_device == {"cuda:0": (8 * 16 + 16) * 4, "cuda:1": (16 * 4 + 4) * 4}
    assert [(value.name, value.device) for value in (*summary.inputs, *summary.outputs)] == [
        ("x", "cuda:0"),
        ("output", "cpu"),
    ]


def test_one_function_answers_for_modules_and_programs():
    module = nn.Linear(4, 2)
    program = torch.export.export(module, (torch.ones(3, 4),))

    assert summary_of(module).total_parameters == summary_of(program).parameters.elements == 10
    with pytest.raises(TypeError, match="got int"):
        summary_of(5)
