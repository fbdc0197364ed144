"""Convert a program to the JSON of Model Explorer, a viewer that draws graphs and groups nodes by module.

Source: `graph_builder.py` and `node_data_builder.py` of ai-edge-model-explorer 0.1.34.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fakexport._torch.operators.operator_schema import argument_names
from fakexport.exporting.program import Spelling, Visit, attribute, example_size, plain_path, tensors_in, walk
from fakexport.rules.diagnostics import Diagnostic

Json = dict[str, Any]

_COLOR_OF_DEVICES = ("#90caf9", "#a5d6a7", "#ffcc80", "#ce93d8", "#80deea", "#ef9a9a", "#e6ee9c", "#bcaaa4")
_COLOR_OF_HOST = "#cfd8dc"
_COLOR_OF_SEVERITY = {"error": "#ef5350", "warning": "#ffb74d", "note": "#90caf9"}
_BYTES = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#ef5350"}]
_MOST_TEXT = 200


@dataclass(frozen=True)
class ModelExplorerFiles:
    """Files for Model Explorer.

    Args:
        graph: A graph collection: the main graph, and one graph for each control-flow subgraph.
        node_data: Node data for coloring nodes, by name: `bytes`, `device`, and `diagnostics` if there are
            any.
    """

    graph: Json
    node_data: Mapping[str, Json]


def model_explorer_files(
    program: ExportedProgram, name: str, diagnostics: Sequence[Diagnostic] = ()
) -> ModelExplorerFiles:
    """Return the files with which Model Explorer shows a program.

    Model Explorer groups nodes by namespace. A node's namespace is the innermost module that was running,
    such as `model/layers/3/mlp`. A weight's namespace is the module that owns the weight.

    Args:
        diagnostics: Findings about the program. Each is shown at its node, or at all nodes of its line.
    """
    visits = list(walk(program))
    graphs = {visit.owner: f"{name}/{visit.graph}" if visit.graph else name for visit in visits}
    writer = _Writer(program, graphs)
    nodes: dict[str, list[Json]] = {graph: [] for graph in graphs.values()}
    for visit in visits:
        nodes[graphs[visit.owner]].append(writer.node(visit))
    written: list[Json] = [{"id": graph, "nodes": found} for graph, found in nodes.items()]
    written[0]["groupNodeAttributes"] = _classes(visits)
    placed = [(graphs[visit.owner], visit) for visit in visits]
    node_data = {"bytes": _by_graph(placed, _bytes_data), "device": _device_data(placed)}
    if diagnostics:
        node_data["diagnostics"] = _diagnostics_data(placed, diagnostics)
    return ModelExplorerFiles({"label": name, "graphs": written}, node_data)


class _Writer:
    def __init__(self, program: ExportedProgram, graphs: Mapping[GraphModule, str]) -> None:
        self._graphs = graphs
        self._spelling = Spelling()
        self._held = {
            spec.arg.name: (spec.kind.name.lower(), spec.target)
            for spec in program.graph_signature.input_specs
            if spec.target is not None
        }

    def node(self, visit: Visit) -> Json:
        node = visit.node
        kind, target = self._held.get(node.name, (None, None)) if not visit.graph else (None, None)
        module, _, own = (target or "").rpartition(".")
        written: Json = {
            "id": node.name,
            "label": own or (visit.operator if node.op == "call_function" else str(node.target)),
            "namespace": (module if target else visit.module_path).replace(".", "/"),
            "incomingEdges": [
                {
                    "sourceNodeId": source.name,
                    "sourceNodeOutputId": str(node.args[1]) if node.target is getitem else "0",
                    "targetNodeInputId": str(position),
                }
                for position, source in enumerate(node.all_input_nodes)
            ],
            "attrs": [{"key": key, "value": value} for key, value in self._attributes(visit, kind, target)],
            "outputsMetadata": list(self._outputs(node)),
        }
        if called := [graph for source in node.all_input_nodes if (graph := self._graph(visit, source))]:
            written["subgraphIds"] = called
        return written

    def _graph(self, visit: Visit, source: Node) -> str | None:
        held = attribute(visit.owner, str(source.target)) if source.op == "get_attr" else None
        return self._graphs.get(held) if isinstance(held, GraphModule) else None

    def _attributes(self, visit: Visit, kind: str | None, target: str | None) -> Iterator[tuple[str, str]]:
        if kind is not None and target is not None:
            yield kind, target
        if (span := visit.span) is not None:
            yield "source", f"{span.path}:{span.line}"
        if (size := _bytes(visit.node)) is not None:
            yield "bytes", f"{size:,}"
        if visit.node.op == "call_function":
            names = argument_names(visit.node.target)
            for position, value in enumerate(visit.node.args):
                yield names[position] if position < len(names) else str(position), _text(value)
            yield from ((key, _text(value)) for key, value in visit.node.kwargs.items())

    def _outputs(self, node: Node) -> Iterator[Json]:
        for number, tensor in enumerate(tensors_in(node.meta.get("val"))):
            spec = self._spelling.tensor(tensor)
            shown = {"tensor_shape": f"{spec.dtype}[{', '.join(spec.shape)}]", "device": spec.device}
            yield {"id": str(number), "attrs": [{"key": key, "value": text} for key, text in shown.items()]}


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _bytes(node: Node) -> int | None:
    """Return the bytes of a node's result for the example inputs; None if they are not known."""
    sizes = [example_size(tensor.numel() * tensor.itemsize) for tensor in tensors_in(node.meta.get("val"))]
    return None if None in sizes or not sizes else sum(size for size in sizes if size is not None)


def _classes(visits: Sequence[Visit]) -> dict[str, dict[str, str]]:
    """Return a dict from the namespace of each called module to its class name."""
    found = {}
    for visit in visits:
        for path, kind in (visit.node.meta.get("nn_module_stack") or {}).values():
            if plain := plain_path(path):
                name = kind if isinstance(kind, str) else kind.__qualname__
                found[plain.replace(".", "/")] = {"class": name.rpartition(".")[2]}
    return found


def _by_graph(placed: Sequence[tuple[str, Visit]], data: Any) -> Json:
    graphs: dict[str, list[Visit]] = {}
    for graph, visit in placed:
        graphs.setdefault(graph, []).append(visit)
    return {graph: data(visits) for graph, visits in graphs.items()}


def _bytes_data(visits: Sequence[Visit]) -> Json:
    sizes = {visit.name: _bytes(visit.node) for visit in visits}
    results = {name: {"value": size} for name, size in sizes.items() if size is not None}
    return {"name": "bytes of results", "results": results, "gradient": _BYTES}


def _device_data(placed: Sequence[tuple[str, Visit]]) -> Json:
    def devices(visit: Visit) -> list[str]:
        return list(dict.fromkeys(str(tensor.device) for tensor in tensors_in(visit.node.meta.get("val"))))

    found = sorted({device for _, visit in placed for device in devices(visit)} - {"cpu"})
    colors = {name: _COLOR_OF_DEVICES[i % len(_COLOR_OF_DEVICES)] for i, name in enumerate(found)}

    def data(visits: Sequence[Visit]) -> Json:
        results = {
            visit.name: {"value": ", ".join(on), "bgColor": colors.get(on[0], _COLOR_OF_HOST)}
            for visit in visits
            if (on := devices(visit))
        }
        return {"name": "device", "results": results}

    return _by_graph(placed, data)


def _diagnostics_data(placed: Sequence[tuple[str, Visit]], diagnostics: Sequence[Diagnostic]) -> Json:
    found: dict[str, dict[str, list[Diagnostic]]] = {graph: {} for graph, _ in placed}
    for diagnostic in diagnostics:
        lines = {(label.span.path, label.span.line) for label in diagnostic.labels if label.is_primary}
        for graph, visit in placed:
            is_line = (span := visit.span) is not None and (span.path, span.line) in lines
            is_node = visit.name == diagnostic.node if diagnostic.node else visit.node.op == "call_function"
            if is_node and (is_line or not lines):
                found[graph].setdefault(visit.name, []).append(diagnostic)
    order = list(_COLOR_OF_SEVERITY)

    def data(at: Mapping[str, list[Diagnostic]]) -> Json:
        results = {}
        for name, shown in at.items():
            worst = min(shown, key=lambda diagnostic: order.index(diagnostic.severity))
            text = ", ".join(dict.fromkeys(f"{each.severity}[{each.code}]" for each in shown))
            results[name] = {"value": text, "bgColor": _COLOR_OF_SEVERITY[worst.severity]}
        return {"name": "diagnostics", "results": results}

    return {graph: data(at) for graph, at in found.items()}
