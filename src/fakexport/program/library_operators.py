"""The operators and classes of a program that torch does not have."""

from __future__ import annotations

import torch
from torch.export import ExportedProgram

from fakexport._torch.operator_registry import TORCH_NAMESPACES, OpOverload
from fakexport._torch.operator_schema import defining_module
from fakexport._torch.script_objects import class_name, is_class_of_torch
from fakexport.program.walk import walk

__all__ = ["library_classes", "library_modules", "library_operators"]

_NO_PLACE_TO_IMPORT = ("__main__", "fakexport_source_")
"""Modules that no import elsewhere finds: scripts, and files that were imported by their path."""


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


def library_modules(program: ExportedProgram) -> dict[str, str]:
    """Of the library operators that Python makes, the module that does: `transformers.integrations.moe`."""
    found = {}
    for operator in library_operators(program):
        namespace, name, _ = operator.split(".")
        module = defining_module(f"{namespace}::{name}")
        if module is not None and not module.startswith(_NO_PLACE_TO_IMPORT):
            found[operator] = module
    return found


def library_classes(program: ExportedProgram) -> tuple[str, ...]:
    """Names of the C++ classes whose objects the program holds, but torch's own; `signal_ops::Polynomial`."""
    held = program.constants.values()
    names = {class_name(value) for value in held if isinstance(value, torch.ScriptObject)}
    return tuple(sorted(name for name in names if not is_class_of_torch(name)))
