"""How torch's ONNX exporter finds translations, where it stops, and what it leaves out without a word."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("onnxscript")

from fakexport._torch.operators.onnx_translations import node_of_failure, prepared, untranslated_nodes

pytestmark = pytest.mark.usefixtures("torchlib_read_once")


class TwoMissing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x)[0] + x.median() + x.median()


class BadCall(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.histc(x, 4)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + 1


def exported(module: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(module, (torch.ones(3, 3),))


def names_of(program: torch.export.ExportedProgram, translations: dict[Any, Any]) -> list[str]:
    return [str(node.target) for node in untranslated_nodes(prepared(program, translations), translations)]


@pytest.fixture(autouse=True)
def _no_logs() -> Any:
    """The exporter warns that torchvision is not installed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(before)


@pytest.mark.slow
def test_the_exporter_stops_at_the_first_operator_and_we_name_all() -> None:
    program = exported(TwoMissing())

    with pytest.raises(torch.onnx.OnnxExporterError) as raised:
        torch.onnx.export(program, verbose=False)
    names = names_of(program, {})

    stopped = node_of_failure(raised.value)
    assert stopped is not None
    assert names == [str(stopped.target), "aten.median.default", "aten.median.default"]
    assert names_of(program, {torch.ops.aten.median.default: lambda x: x}) == ["aten.linalg_qr.default"]


def test_an_operator_that_is_called_in_a_way_without_translation_is_in_the_frames_of_the_error() -> None:
    program = exported(BadCall())

    with pytest.raises(torch.onnx.OnnxExporterError) as raised:
        torch.onnx.export(program, verbose=False)

    assert names_of(program, {}) == []
    stopped = node_of_failure(raised.value)
    assert stopped is not None
    assert str(stopped.target) == "aten.histc.default"
    assert "BadCall" not in (stopped.meta["stack_trace"] or "BadCall")
    assert node_of_failure(ValueError("of another kind")) is None


def test_the_exporter_drops_what_is_written_into_a_buffer_and_only_its_own_program_says_so() -> None:
    program = exported(Counter())

    made = torch.onnx.export(program, verbose=False)

    assert made is not None
    assert made.exported_program is not None
    assert program.graph_signature.buffers_to_mutate == {}
    assert list(made.exported_program.graph_signature.buffers_to_mutate.values()) == ["calls"]
    assert [value.name for value in made.model.graph.outputs] == ["add_1"]


@pytest.mark.slow
def test_the_optimiser_takes_a_graph_whose_weights_have_no_values() -> None:
    import onnxscript.optimizer

    made = torch.onnx.export(exported(nn.Linear(3, 3)), optimize=False, verbose=False)
    assert made is not None
    graph = made.model.graph
    for initializer in graph.initializers.values():
        initializer.const_value = None

    onnxscript.optimizer.optimize(made.model)

    assert list(graph.initializers) == ["weight", "bias"]
