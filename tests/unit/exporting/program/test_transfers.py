"""Which nodes move a tensor between devices, and how much."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.exporting.interface import Transfer
from fakexport.exporting.program import summarise, transfers
from tests.unit.exporting.program import small_models
from tests.unit.exporting.program.small_models import BATCH, TwoDevices, export_for


def moves_of(forward: Callable[[torch.Tensor], object], dynamic_shapes: object = None) -> list[Transfer]:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return forward(x)

    def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
        return Model(), (torch.randn(3, 8, device="cuda:0"),)

    return list(transfers(export_for("cpu+2xH100", make, dynamic_shapes)))


def test_each_move_is_found_with_its_devices_bytes_and_line(two_devices: ExportedProgram) -> None:
    to_second, to_cpu = transfers(two_devices)

    source, first_line = inspect.getsourcelines(TwoDevices.forward)
    assert (to_second.source, to_second.target) == ("cuda:0", "cuda:1")
    assert (to_cpu.source, to_cpu.target) == ("cuda:1", "cpu")
    assert (to_second.dtype, to_second.shape[1], to_second.bytes) == ("float32", "16", 3 * 16 * 4)
    assert to_second.bytes_expression == f"64*{to_second.shape[0]}"
    assert (to_cpu.dtype, to_cpu.bytes) == ("bfloat16", 3 * 4 * 2)
    for move, text in ((to_second, 'to("cuda:1")'), (to_cpu, 'to("cpu")')):
        assert move.span is not None
        assert move.span.path == small_models.__file__
        assert text in source[move.span.line - first_line]
    assert to_second.index < to_cpu.index < summarise(two_devices).node_count


def test_a_move_inside_a_region_names_its_subgraph(two_devices: ExportedProgram) -> None:
    to_second, to_cpu = transfers(two_devices)

    assert hasattr(two_devices.graph_module, to_second.graph)
    assert to_cpu.graph == ""


def test_static_sizes_give_bytes_and_no_expression() -> None:
    (move,) = moves_of(lambda x: x.to("cuda:1"))

    assert (move.bytes, move.bytes_expression, move.shape) == (96, None, ("3", "8"))


def test_a_cast_on_the_way_counts_what_arrives() -> None:
    (move,) = moves_of(lambda x: x.to("cpu", torch.float16))

    assert (move.dtype, move.bytes) == ("float16", 48)


def test_a_size_without_an_example_has_an_expression_only() -> None:
    (move,) = moves_of(lambda x: x.nonzero().to("cpu"))

    assert (move.bytes, move.bytes_expression) == (None, "16*u0")


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: torch.empty(3, 8, device="cuda:1").copy_(x),
        lambda x: x.to(torch.ones(1, device="cuda:1")),
        lambda x: torch.ops.aten._to_copy(x, device="cuda:1"),
        lambda x: torch.ops.prims.device_put(x, torch.device("cuda:1")),
    ],
)
def test_every_way_to_move_is_known(forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
    (move,) = moves_of(forward)

    assert (move.source, move.target, move.bytes) == ("cuda:0", "cuda:1", 96)


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: torch.zeros_like(x, device="cpu"),
        lambda x: x.new_zeros(2, device="cpu"),
        lambda x: x.to("cuda:0"),
        lambda x: x.to(torch.float16),
        lambda x: x + torch.ones((), device="cpu"),
        lambda x: x[torch.tensor([0, 1], device="cpu")],
        lambda x: torch.empty(3, 8, device="cuda:0").copy_(x),
    ],
)
def test_what_moves_no_tensor_is_no_transfer(forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert moves_of(forward) == []


def test_a_custom_operator_that_moves_is_found() -> None:
    @torch.library.custom_op("fakexport_tests::offload", mutates_args=())
    def offload(x: torch.Tensor) -> torch.Tensor:
        return x.cpu()

    @offload.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x, device="cpu")

    (move,) = moves_of(lambda x: offload(x), BATCH)

    assert (move.operator, move.target) == ("fakexport_tests.offload.default", "cpu")
