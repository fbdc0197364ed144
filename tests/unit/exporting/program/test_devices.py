"""Device literals of a program."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.exporting.program import DeviceLiteral, devices


def literals_of(forward) -> list[DeviceLiteral]:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return forward(x)

    return list(devices(torch.export.export(Model(), (torch.randn(3),))))


def test_a_keyword_is_found_with_its_line() -> None:
    (literal,) = literals_of(lambda x: x + torch.zeros(3, device="cpu"))

    assert (literal.operator, literal.argument, literal.device) == ("aten.zeros.default", "device", "cpu")
    assert literal.span is not None
    assert literal.span.path == __file__


def test_a_positional_device_has_its_name_from_the_schema() -> None:
    program = torch.export.export(nn.Identity(), (torch.randn(3),))
    with program.graph.inserting_before(program.graph.output_node()):
        program.graph.call_function(
            torch.ops.aten.to.device, (_input(program), torch.device("cuda:1"), torch.half)
        )

    (literal,) = devices(program)

    assert (literal.argument, literal.device) == ("device", "cuda:1")


def test_autocast_names_a_device_by_position() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    (literal,) = literals_of(forward)

    assert (literal.operator, literal.argument) == ("higher_order.wrap_with_autocast", "0")
    assert literal.device == "cpu"


def test_strings_and_lists_of_a_custom_operator_are_searched() -> None:
    torch.library.define("fakexport_tests::place", "(Tensor x, str[] places, str mode) -> Tensor")
    program = torch.export.export(nn.Identity(), (torch.randn(3),))
    target = torch.ops.fakexport_tests.place.default
    with program.graph.inserting_before(program.graph.output_node()):
        program.graph.call_function(target, (_input(program), ["cuda:0", "cpu"], "cpu_offload"))

    found = [(literal.argument, literal.device) for literal in devices(program)]

    assert found == [("places[0]", "cuda:0"), ("places[1]", "cpu")]


@pytest.mark.slow
def test_gpt2_burns_its_cpu_in(gpt2: ExportedProgram) -> None:
    found = devices(gpt2)

    expected = [
        node.name
        for node in gpt2.graph.nodes
        if any(isinstance(value, torch.device) for value in (*node.args, *node.kwargs.values()))
    ]
    assert [literal.node for literal in found if "autocast" not in literal.operator] == expected
    assert {literal.device for literal in found} == {"cpu"}
    assert "modeling_gpt2.py" in {literal.span.path.rpartition("/")[2] for literal in found if literal.span}


def _input(program: ExportedProgram) -> torch.fx.Node:
    return next(iter(program.graph.nodes))


def test_moves_and_places_elsewhere_are_intent_and_the_rest_is_baked_in(
    two_devices: ExportedProgram,
) -> None:
    found = {(literal.kind, literal.device): literal.is_baked_in for literal in devices(two_devices)}

    assert found["move", "cuda:1"] is False
    assert found["move", "cpu"] is False
    assert found["autocast", "cuda"] is True
    assert {is_baked_in for (kind, _), is_baked_in in found.items() if kind == "assertion"} == {True}


def test_constants_are_listed_with_the_line_that_reads_them() -> None:
    program = torch.export.export(WithTable(), (torch.randn(3),))

    (literal,) = devices(program)

    assert (literal.kind, literal.argument, literal.device) == ("constant", "table", "cpu")
    assert literal.span is not None
    assert literal.span.path == __file__


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(3.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table
