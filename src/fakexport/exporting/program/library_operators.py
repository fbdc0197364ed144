"""Find the operators and classes in a program that are provided by libraries rather than by torch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.export import ExportedProgram

from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.operators.operator_schema import defining_module, is_python_operator
from fakexport._torch.operators.packaged_operators import TORCH_NAMESPACES
from fakexport._torch.tracing.script_objects import class_name, is_class_of_torch
from fakexport.exporting.program.walk import walk

_NO_PLACE_TO_IMPORT = ("__main__", "fakexport_source_")
"""Modules that other processes cannot import: scripts, and files that `sources.python_file` imported."""


def library_operators(program: ExportedProgram) -> tuple[str, ...]:
    """Return the names of the operators that libraries must register before the program can run, sorted.

    Example:
        >>> import torch; from fakexport.exporting.capture import export
        >>> library_operators(export(lambda: torch.nn.Linear(4, 2), (torch.zeros(3, 4),)))
        ()
    """
    called = (visit.node.target for visit in walk(program) if visit.node.op == "call_function")
    operators = {target for target in called if isinstance(target, OpOverload)}
    return tuple(sorted(str(found) for found in operators if found.namespace not in TORCH_NAMESPACES))


def python_operators(operators: Iterable[str]) -> dict[str, str | None]:
    """Map each `torch.library.custom_op` operator to its module, or to None if it cannot be imported."""
    found = {}
    for operator in operators:
        namespace, name, _ = operator.split(".")
        if is_python_operator(f"{namespace}::{name}"):
            module = defining_module(f"{namespace}::{name}")
            is_found = module is not None and not module.startswith(_NO_PLACE_TO_IMPORT)
            found[operator] = module if is_found else None
    return found


def library_modules(operators: Iterable[str]) -> dict[str, str]:
    """Return the modules of `python_operators` that can be imported, by operator."""
    return {name: module for name, module in python_operators(operators).items() if module is not None}


def library_classes(program: ExportedProgram) -> tuple[str, ...]:
    """Return the names of the C++ classes of objects in the program, such as `signal_ops::Polynomial`.

    torch's own classes are excluded.
    """
    held = program.constants.values()
    names = {class_name(value) for value in held if isinstance(value, torch.ScriptObject)}
    return tuple(sorted(name for name in names if not is_class_of_torch(name)))
