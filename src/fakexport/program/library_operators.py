"""The operators of a program that torch does not have."""

from __future__ import annotations

from torch.export import ExportedProgram

from fakexport._torch.operator_registry import TORCH_NAMESPACES, OpOverload
from fakexport.program.walk import walk

__all__ = ["library_operators"]


def library_operators(program: ExportedProgram) -> tuple[str, ...]:
    """Names of the operators that a library has to register before the program can run, sorted.

    Example:
        >>> import torch; from fakexport.capture import export
        >>> library_operators(export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),)))
        ()
    """
    called = (visit.node.target for visit in walk(program) if visit.node.op == "call_function")
    operators = {target for target in called if isinstance(target, OpOverload)}
    return tuple(sorted(str(found) for found in operators if found.namespace not in TORCH_NAMESPACES))
