"""A part of a weight is used by its own module, which communicates, and by no one else."""

from __future__ import annotations

from collections.abc import Iterable

from torch.export import ExportedProgram

from fakexport.documents import ParallelRecord
from fakexport.error import FakexportError
from fakexport.program import module_path


class ShardedWeightRead(FakexportError, ValueError):
    """A module computes with a part of another module's weight: the result would not be that of the model."""


def check_sharded_weights(program: ExportedProgram, record: ParallelRecord) -> None:
    """Refuse a program in which the part of a weight is read outside of the module that has it.

    Only the forward of that module is sharded: `F.linear(x, self.proj.weight)` has no collective.

    Args:
        program: Of one rank.
        record: What the rank has of each weight.
    Raises:
        ShardedWeightRead: One is.
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
        for user in node.users:
            path = module_path(user)
            if user.op != "output" and not _is_inside(path, owners[id(state[name])]):
                reader = path or "the model itself"
                raise ShardedWeightRead(f"{name} is sharded, and {reader} reads it without its module")


def _is_inside(path: str, owners: Iterable[str]) -> bool:
    return any(path == owner or path.startswith(f"{owner}.") for owner in owners)
