"""Check that a rank's constants equal the model's, and that only the owning module reads a sharded weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

from fakexport._torch.pytree import tree_leaves
from fakexport.emulation.history import bits, known_value
from fakexport.exporting.program import input_nodes, module_path, source_span, subgraphs_of
from fakexport.files.documents import ParallelRecord

from .layout import ShardingChangesResult


def check_constants(program: ExportedProgram, whole: ExportedProgram) -> None:
    """Reject a program whose constant values differ from those of the unsharded model.

    Args:
        program: The program of one rank. Its inputs correspond to those of `whole`, in order.
        whole: The program of the unsharded model.
    Raises:
        ShardingChangesResult: a constant differs.
    """
    for (node, mine), (_, theirs) in zip(_constants(program), _constants(whole), strict=True):
        if not _is_same(known_value(mine), known_value(theirs)):
            user = next(iter(node.users), node)
            raise ShardingChangesResult(
                f"{module_path(user) or 'the model itself'} uses a constant tensor whose value "
                "differs in the unsharded model: the model computes a number from the size of a shard",
                source_span(user),
                is_number=True,
            )


def _constants(program: ExportedProgram) -> Iterator[tuple[Node, Any]]:
    for spec, node in input_nodes(program):
        if spec.kind is InputKind.CONSTANT_TENSOR:
            yield node, program.constants[str(spec.target)]


def _is_same(one: torch.Tensor | None, two: torch.Tensor | None) -> bool:
    """Return whether two constants have the same bits, or both have no value and are set by the user."""
    if one is None or two is None:
        return one is two
    return (one.dtype, one.shape) == (two.dtype, two.shape) and torch.equal(bits(one), bits(two))


def check_sharded_weights(program: ExportedProgram, record: ParallelRecord) -> None:
    """Reject a program that reads a sharded weight outside of its module.

    Only the `forward` of that module runs the collective. `F.linear(x, self.proj.weight)` in another module
    does not.

    Raises:
        ShardingChangesResult: a weight is read outside of its module.
    """
    state, weights = program.state_dict, program.graph_signature.inputs_to_parameters
    owners: dict[int, list[str]] = {}
    for name in record.shards:
        if name in state:
            owners.setdefault(id(state[name]), []).append(name.rpartition(".")[0])
    for node in program.graph.find_nodes(op="placeholder"):
        name = weights.get(node.name)
        if name is None or id(state[name]) not in owners:
            continue
        for user in _readers(program.graph_module, node):
            path = module_path(user)
            if user.op != "output" and not _is_inside(path, owners[id(state[name])]):
                reader = path or "the model itself"
                said = (
                    f"{name} is sharded, but {reader} reads the tensor directly instead of calling the "
                    "module that owns it"
                )
                raise ShardingChangesResult(said, source_span(user))


def _readers(owner: GraphModule, node: Node) -> Iterator[Node]:
    """Yield the nodes that use a value, including those in subgraphs of operators such as `no_grad`."""
    for user in node.users:
        leaves = tree_leaves((user.args, dict(user.kwargs)))
        graphs = [graph for _, graph in subgraphs_of(user, owner)]
        if not graphs:
            yield user
        for graph in graphs:
            placeholders = graph.graph.find_nodes(op="placeholder")
            for placeholder, operand in zip(reversed(placeholders), reversed(leaves), strict=False):
                if operand is node:
                    yield from _readers(graph, placeholder)


def _is_inside(path: str, owners: Iterable[str]) -> bool:
    return any(path == owner or path.startswith(f"{owner}.") for owner in owners)
