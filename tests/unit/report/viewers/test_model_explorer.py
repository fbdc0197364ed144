"""A program as Model Explorer's JSON: nodes and edges, modules as namespaces, what colors the nodes."""

from __future__ import annotations

from operator import getitem

import pytest
import torch
from torch import nn

from fakexport.exporting.capture import export
from fakexport.report.diagnose import diagnose_loaded
from fakexport.report.viewers import model_explorer_files


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return x + self.drop(self.inner(x))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        left, right = x.split(4, 1)
        return torch.cond(left.sum() > 0, lambda a: a + 1, lambda a: a - 1, (left * right,))


@pytest.fixture(scope="module")
def program():
    placement = {"layers.0": "cpu", "": "cuda:0"}
    return export(
        lambda: Branching().train().requires_grad_(False),
        (torch.ones(4, 8),),
        target="cpu+H100",
        device_map=placement,
        dynamic_shapes=["x.0=2..64"],
    )


@pytest.fixture(scope="module")
def files(program):
    return model_explorer_files(program, "model", diagnose_loaded(program))


def nodes_of(files, graph):
    return {node["id"]: node for node in files.graph["graphs"][graph]["nodes"]}


def test_every_node_and_edge_of_the_program_is_there(program, files):
    graphs = [program.graph, *(part.graph for part in program.graph_module.children())]

    for graph, written in zip(graphs, files.graph["graphs"], strict=True):
        found = {
            node["id"]: [edge["sourceNodeId"] for edge in node["incomingEdges"]] for node in written["nodes"]
        }
        assert found == {node.name: [each.name for each in node.all_input_nodes] for node in graph.nodes}
    taken = [node for node in program.graph.nodes if node.target is getitem]
    for node in taken:
        assert nodes_of(files, 0)[node.name]["incomingEdges"][0]["sourceNodeOutputId"] == str(node.args[1])


def test_modules_are_namespaces_with_their_weights(files):
    nodes = nodes_of(files, 0)

    inside = {node["label"] for node in nodes.values() if node["namespace"] == "layers/1/inner"}
    assert inside == {"weight", "bias", "aten.linear.default"}
    assert nodes["x"]["namespace"] == ""
    assert files.graph["graphs"][0]["groupNodeAttributes"]["layers/1/inner"] == {"class": "Linear"}


def test_control_flow_node_lists_its_subgraphs(files):
    (call,) = [node for node in nodes_of(files, 0).values() if "subgraphIds" in node]

    assert call["label"] == "higher_order.cond"
    assert call["subgraphIds"] == [graph["id"] for graph in files.graph["graphs"][1:]]


def test_node_data_has_bytes_devices_and_diagnostics(files):
    bytes_, devices, diagnostics = (
        {name: item["value"] for name, item in data["model"]["results"].items()}
        for data in files.node_data.values()
    )

    assert bytes_["p_layers_0_inner_weight"] == 8 * 8 * 4
    assert bytes_["linear"] == 4 * 8 * 4, "at the example's size"
    assert (devices["linear"], devices["linear_1"]) == ("cpu", "cuda:0")
    assert diagnostics == {"dropout": "warning[FE901]", "dropout_1": "warning[FE901]"}


def test_no_diagnostics_data_without_findings():
    program = export(nn.Linear(4, 2), (torch.zeros(3, 4),))

    files = model_explorer_files(program, "model", diagnose_loaded(program))

    assert list(files.node_data) == ["bytes", "device"]
