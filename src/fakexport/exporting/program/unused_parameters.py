"""Find parameters that a program does not use."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport.exporting.program.program_facts import facts_of
from fakexport.exporting.program.tensor_identity import tensor_identity
from fakexport.exporting.program.walk import input_nodes


@dataclass(frozen=True)
class UnusedParameters:
    """Parameters of a module that its program does not use. Tied parameters count once.

    Args:
        modules: Paths of the largest modules that have only unused parameters, and of single unused
            parameters in other modules, in the order of the module.
        elements: Number of elements in the unused parameters.
        total_elements: Number of elements in all parameters.
    """

    modules: tuple[str, ...]
    elements: int
    total_elements: int


def unused_parameters(program: ExportedProgram, module: nn.Module) -> UnusedParameters:
    """Return the parameters of a module that no node of its program reads.

    A tied parameter is used if the program reads it under any of its names.

    Args:
        program: The program exported from the module, in non-strict or strict mode. It may lack unused
            parameters, because strict export omits them.
        module: The module, with the parameters that it had when it was exported.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    identities = {name: tensor_identity(parameter) for name, parameter in parameters.items()}
    record = facts_of(program).adapter
    own = {} if record is None else {new: name for name, new in record.weights.items()}
    read = (
        own.get(spec.target, spec.target)
        for spec, node in input_nodes(program)
        if spec.kind is InputKind.PARAMETER and spec.target is not None and node.users
    )
    used = {identities[name] for name in read if name in identities}
    elements = {identities[name]: parameter.numel() for name, parameter in parameters.items()}
    used_names = {name for name, identity in identities.items() if identity in used}
    return UnusedParameters(
        modules=tuple(dict.fromkeys(_largest_unused(parameters, used_names))),
        elements=sum(count for identity, count in elements.items() if identity not in used),
        total_elements=sum(elements.values()),
    )


def _largest_unused(names: Iterable[str], used: Collection[str]) -> Iterator[str]:
    """For each unused name, yield its shortest prefix (a module) that contains no used name."""
    leads_to_used = {above for name in used for above in _paths(name)}
    for name in names:
        if name not in used:
            yield next(path for path in _paths(name) if path not in leads_to_used)


def _paths(name: str) -> Iterator[str]:
    return itertools.accumulate(name.split("."), lambda path, part: f"{path}.{part}")
