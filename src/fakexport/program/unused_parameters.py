"""Parameters that a program holds and never uses."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport.program.program_facts import facts_of
from fakexport.program.tensor_identity import tensor_identity


@dataclass(frozen=True)
class UnusedParameters:
    """What a module has and its program does not use; tied parameters count once.

    Args:
        modules: Paths of the largest modules of which the program uses no parameter, and of single parameters
            next to used ones, in the module's order.
        elements: Number of elements in the unused parameters.
        total_elements: Number of elements in all parameters.
    """

    modules: tuple[str, ...]
    elements: int
    total_elements: int


def unused_parameters(program: ExportedProgram, module: nn.Module) -> UnusedParameters:
    """Return the parameters of a module that no node of its program reads.

    A parameter is used if one of the names that it is tied to is.

    Args:
        program: Exported from the module; non-strict or strict, which leaves unused parameters out.
        module: With its parameters as they were exported.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    identities = {name: tensor_identity(parameter) for name, parameter in parameters.items()}
    record = facts_of(program).adapter
    own = {} if record is None else {new: name for name, new in record.weights.items()}
    read = (own.get(name, name) for name in _read_names(program))
    used = {identities[name] for name in read if name in identities}
    elements = {identities[name]: parameter.numel() for name, parameter in parameters.items()}
    used_names = {name for name, identity in identities.items() if identity in used}
    return UnusedParameters(
        modules=tuple(dict.fromkeys(_largest_unused(parameters, used_names))),
        elements=sum(count for identity, count in elements.items() if identity not in used),
        total_elements=sum(elements.values()),
    )


def _read_names(program: ExportedProgram) -> Iterator[str]:
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.PARAMETER and spec.target is not None and nodes[spec.arg.name].users:
            yield spec.target


def _largest_unused(names: Iterable[str], used: Collection[str]) -> Iterator[str]:
    """Return for each name that is not used, the shortest path above it that leads to no used name."""
    leads_to_used = {above for name in used for above in _paths(name)}
    for name in names:
        if name not in used:
            yield next(path for path in _paths(name) if path not in leads_to_used)


def _paths(name: str) -> Iterator[str]:
    """Return `a`, `a.b`, `a.b.c`."""
    return itertools.accumulate(name.split("."), lambda path, part: f"{path}.{part}")
