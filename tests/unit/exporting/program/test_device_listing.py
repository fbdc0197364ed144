"""What the devices of a program break on another one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

import fakexport as fe


@pytest.mark.slow
def test_the_four_lines_of_gpt2_are_found(gpt2: ExportedProgram) -> None:
    listing = fe.inspect_devices(gpt2)

    lines = {literal.span.line for literal in listing.literals if literal.span is not None}
    assert (listing.devices, listing.other_device) == (("cpu",), "cuda:0")
    assert {571, 575, 581} <= lines
    assert all(literal.is_baked_in for literal in listing.literals)
    assert {diagnostic.code for diagnostic in listing.diagnostics} == {"FE501"}
    first = listing.diagnostics[0]
    assert first.primary is not None
    assert (first.primary.span.path.rpartition("/")[2], first.primary.span.line) == ("modeling_gpt2.py", 571)
    assert first.notes == ("on another device, aten.embedding.default gets weight on cuda:0, indices on cpu",)


def test_a_literal_that_breaks_several_nodes_is_one_finding() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = torch.arange(3, device=x.device)
            return (x + steps) * (x - steps)

    listing = fe.inspect_devices(torch.export.export(Model(), (torch.zeros(3),)))

    (diagnostic,) = listing.diagnostics
    assert diagnostic.count == 1
    assert [breakage.node for breakage in listing.breakages] == ["add", "sub"]


def test_a_number_on_the_cpu_breaks_nothing() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros((), device=x.device)

    listing = fe.inspect_devices(torch.export.export(Model(), (torch.zeros(3),)))

    assert [literal.is_baked_in for literal in listing.literals] == [True]
    assert (listing.breakages, listing.diagnostics) == ((), ())


def test_stale_assertions_are_told_as_well() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.half()

    listing = fe.inspect_devices(torch.export.export(Model(), (torch.zeros(3),)))

    (breakage,) = listing.breakages
    assert breakage.reason == "the program asserts cpu for a tensor on cuda:0"
    assert listing.diagnostics == ()
