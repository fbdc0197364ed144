"""Runs the programs of all ranks in one process, node by node: an oracle without process groups."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.node import map_arg

_COLLECTIVES = torch.ops._c10d_functional


def run_ranks(programs: Sequence[ExportedProgram], *inputs: torch.Tensor) -> list[tuple[Any, ...]]:
    """Return what each rank returns, flat. The programs have the same nodes, and all weights."""
    values: list[dict[Any, Any]] = [_given(program, inputs) for program in programs]
    with torch.no_grad():
        for nodes in zip(*(program.graph.nodes for program in programs), strict=True):
            assert len({str(node.target) if node.op == "call_function" else node.op for node in nodes}) == 1
            if nodes[0].op == "output":
                return [
                    tuple(map_arg(node.args[0], own.__getitem__))
                    for node, own in zip(nodes, values, strict=True)
                ]
            for own, node, value in zip(values, nodes, _results(programs, nodes, values), strict=True):
                own[node] = value
    raise AssertionError("a graph without an output")


def _results(programs: Any, nodes: Any, values: Any) -> list[Any]:
    if nodes[0].op == "placeholder":
        return [own[node] for own, node in zip(values, nodes, strict=True)]
    if nodes[0].op == "get_attr":
        return [getattr(p.graph_module, node.target) for p, node in zip(programs, nodes, strict=True)]
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
        assert all(args[1] == len(programs) for args, _ in arguments)
        return [torch.cat(given) for _ in nodes]
    if target is _COLLECTIVES.wait_tensor.default:
        return given
    return [target(*args, **kwargs) for args, kwargs in arguments]


def _given(program: ExportedProgram, inputs: Sequence[torch.Tensor]) -> dict[Any, Any]:
    held, left = {**program.state_dict, **program.constants}, list(inputs)
    nodes = program.graph.find_nodes(op="placeholder")
    return {
        node: left.pop(0) if spec.kind is InputKind.USER_INPUT else held[spec.target]
        for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True)
    }
