"""Where in the model a node comes from."""

from __future__ import annotations

import pytest
import torch
from torch.export import ExportedProgram
from torch.fx import Graph
from transformers import LlamaForCausalLM

from fakexport.exporting.program import module_path, walk
from fakexport.exporting.program.node_names import star, star_common
from tests.unit.exporting.program.small_models import MLP, Block, Blocks


@pytest.mark.parametrize("is_strict", [False, True])
def test_every_path_names_a_module_of_the_model(is_strict: bool) -> None:
    model = Blocks()
    program = torch.export.export(model, (torch.randn(3, 8),), strict=is_strict)

    paths = {node.name: module_path(node) for node in program.graph.nodes if node.op == "call_function"}

    assert paths["linear"] == "layers.0.proj"
    assert paths["add"] == "layers.0"
    assert set(paths.values()) == {f"layers.{i}{suffix}" for i in range(4) for suffix in ("", ".proj")}


@pytest.mark.slow
def test_library_paths_are_those_of_named_modules(
    llama: ExportedProgram, llama_model: LlamaForCausalLM
) -> None:
    paths = {visit.module_path for visit in walk(llama)}

    assert paths <= dict(llama_model.named_modules()).keys()
    assert "model.layers.2.self_attn.q_proj" in paths


def test_a_module_that_is_called_twice_has_one_path() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(self.block(x))

    program = torch.export.export(Twice(), (torch.randn(3, 8),))

    linears = [node for node in program.graph.nodes if "linear" in node.name]
    assert [module_path(node) for node in linears] == ["block.proj", "block.proj"]


def test_nodes_of_a_branch_have_the_path_of_the_module(branching: ExportedProgram) -> None:
    assert {visit.module_path for visit in walk(branching) if visit.caller} <= {"", "fc"}


@pytest.mark.parametrize(
    ("traced", "path"),
    [
        ("", ""),
        ("L__self__", ""),
        ("L['self'].model.layers.3", "model.layers.3"),
        ("L['self']._modules['model']._modules['layers']._modules['3']", "model.layers.3"),
        ("_export_root.fc", "fc"),
        ("fc@1", "fc"),
        ("selfish.fc", "selfish.fc"),
        ("_empty_nn_module_stack_from_metadata_hook", ""),
    ],
)
def test_traces_of_the_tracer_are_removed(traced: str, path: str) -> None:
    node = Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"outer": ("", "Model"), "inner": (traced, "Module")}

    assert module_path(node) == path


def test_a_node_without_a_stack_is_at_the_root() -> None:
    program = torch.export.export(MLP(), (torch.randn(3, 8),))

    assert module_path(next(iter(program.graph.nodes))) == ""


def test_stars_stand_for_indices_that_vary() -> None:
    assert star("layers.3.experts.17.up") == "layers.*.experts.*.up"
    assert star("conv2d.v2") == "conv2d.v2"
    assert star_common(["layers.3.experts.0", "layers.3.experts.1"]) == "layers.3.experts.*"
    assert star_common(["fc"]) == "fc"
