"""Runs the programs of all ranks in one process, node by node: an oracle without process groups."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule
from torch.fx.node import map_arg

_COLLECTIVES = torch.ops._c10d_functional


def run_ranks(programs: Sequence[ExportedProgram], *inputs: torch.Tensor) -> list[tuple[Any, ...]]:
    """Return what each rank returns, flat. The programs have the same nodes, and all weights."""
    with torch.no_grad():
        return _run([p.graph_module for p in programs], [_given(program, inputs) for program in programs])


def _run(owners: Sequence[GraphModule], values: list[dict[Any, Any]]) -> list[tuple[Any, ...]]:
    for nodes in zip(*(owner.graph.nodes for owner in owners), strict=True):
        assert len({str(node.target) if node.op == "call_function" else node.op for node in nodes}) == 1
        if nodes[0].op == "output":
            return [
                tuple(map_arg(node.args[0], own.__getitem__)) for node, own in zip(nodes, values, strict=True)
            ]
        for own, node, value in zip(values, nodes, _results(owners, nodes, values), strict=True):
            own[node] = value
    raise AssertionError("a graph without an output")


def _results(owners: Sequence[GraphModule], nodes: Any, values: Any) -> list[Any]:
    if nodes[0].op == "placeholder":
        return [own[node] for own, node in zip(values, nodes, strict=True)]
    if nodes[0].op == "get_attr":
        return [getattr(owner, node.target) for owner, node in zip(owners, nodes, strict=True)]
    arguments = [
        (map_arg(node.args, own.__getitem__), map_arg(node.kwargs, own.__getitem__))
        for node, own in zip(nodes, values, strict=True)
    ]
    target = nodes[0].target
    given = [args[0] if args else None for args, _ in arguments]
    if target is _COLLECTIVES.all_reduce.default:
        return [torch.stack(given).sum(0) for _ in nodes]
    if target is _COLLECTIVES.all_gather_into_tensor.default:
        assert len({tuple(value.shape) for value in given}) == 1
        assert all(args[1] == len(owners) for args, _ in arguments)
        return [torch.cat(given) for _ in nodes]
    if target is _COLLECTIVES.wait_tensor.default:
        return given
    graphs = [next((arg for arg in args if isinstance(arg, GraphModule)), None) for args, _ in arguments]
    if str(target).startswith("wrap_with_set_grad") and None not in graphs:
        return _region(graphs, [args for args, _ in arguments])
    return [target(*args, **kwargs) for args, kwargs in arguments]


def _region(graphs: Sequence[Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the results of a graph that runs under other settings, which do not matter without gradients."""
    values = [
        dict(zip(graph.graph.find_nodes(op="placeholder"), args[args.index(graph) + 1 :], strict=True))
        for graph, args in zip(graphs, arguments, strict=True)
    ]
    return list(_run(graphs, values))


def _given(program: ExportedProgram, inputs: Sequence[torch.Tensor]) -> dict[Any, Any]:
    held, left = {**program.state_dict, **program.constants}, list(inputs)
    nodes = program.graph.find_nodes(op="placeholder")
    return {
        node: left.pop(0) if spec.kind is InputKind.USER_INPUT else held[spec.target]
        for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True)
    }
