"""A part of a weight is used by its own module, which communicates, and by no one else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fakexport._torch.pytree import tree_leaves
from fakexport.documents import ParallelRecord
from fakexport.program import module_path, source_span

from .rank_layouts import ShardingChangesResult


def check_sharded_weights(program: ExportedProgram, record: ParallelRecord) -> None:
    """Refuse a program in which the part of a weight is read outside of the module that has it.

    Only the forward of that module is sharded: `F.linear(x, self.proj.weight)` has no collective.

    Raises:
        ShardingChangesResult: One is.
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
                said = f"{name} is sharded, and {reader} reads it without its module"
                raise ShardingChangesResult(said, source_span(user))


def _readers(owner: GraphModule, node: Node) -> Iterator[Node]:
    """Yield the nodes that use a value, in the graphs of higher-order operators too, such as `no_grad`."""
    for user in node.users:
        leaves = tree_leaves((user.args, dict(user.kwargs)))
        held = [leaf for leaf in leaves if isinstance(leaf, Node) and leaf.op == "get_attr"]
        graphs = [getattr(owner, str(leaf.target), None) for leaf in held]
        inner = [graph for graph in graphs if isinstance(graph, GraphModule)]
        if not inner:
            yield user
        for graph in inner:
            placeholders = graph.graph.find_nodes(op="placeholder")
            for placeholder, operand in zip(reversed(placeholders), reversed(leaves), strict=False):
                if operand is node:
                    yield from _readers(graph, placeholder)


def _is_inside(path: str, owners: Iterable[str]) -> bool:
    return any(path == owner or path.startswith(f"{owner}.") for owner in owners)
