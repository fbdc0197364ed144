"""Objects of C++ classes (TorchBind) that a failed export met. Seen on torch 2.11 to 2.13.

Source: `torch/_library/fake_class_registry.py:maybe_to_fake_obj`,
`torch/_export/non_strict_utils.py:_fakify_script_objects`.
"""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._library.fake_class_registry import FakeScriptObject
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

__all__ = ["HeldObject", "class_name", "held_script_object", "hold_real_objects", "is_class_registered"]


@dataclass(frozen=True)
class HeldObject:
    """An object of a C++ class, and the module that holds it.

    Args:
        class_name: `profiling::_ScriptProfile`.
        methods: Of each method its name and the text of its schema.
        attribute: Name of the module's attribute; empty where it is no attribute.
        owner_file, owner_class: Where the module's class is defined; empty where that is not known.
    """

    class_name: str
    methods: tuple[tuple[str, str], ...]
    attribute: str = ""
    owner_file: str = ""
    owner_class: str = ""


def held_script_object(error: BaseException) -> HeldObject | None:
    """The object that an export was working on when it raised, found in the frames of the traceback."""
    values = [
        value for frame, _ in traceback.walk_tb(error.__traceback__) for value in frame.f_locals.values()
    ]
    met = [value for value in values if isinstance(value, torch.ScriptObject)]
    if not met:
        return None
    name = class_name(met[-1])
    methods = _methods(met[-1])
    for module in (module for root in values if isinstance(root, nn.Module) for module in root.modules()):
        for attribute, value in vars(module).items():
            if value is met[-1]:
                return HeldObject(name, methods, attribute, _file(type(module)), type(module).__qualname__)
    return HeldObject(name, methods)


def class_name(script_object: torch.ScriptObject) -> str:
    """`signal_ops::Polynomial`"""
    return str(script_object._type()).removeprefix("__torch__.torch.classes.").replace(".", "::")


def is_class_registered(name: str) -> bool:
    """Whether a library that is loaded has the class of this name."""
    try:
        torch._C._get_custom_class_python_wrapper(*name.split("::"))
    except RuntimeError:
        return False
    return True


def hold_real_objects(program: ExportedProgram) -> None:
    """Puts the objects of C++ classes themselves among the program's constants, where their fakes are.

    A strict export leaves the fakes there, with which the program cannot run, and names them by TorchDynamo's
    way to the object, through the closure of a wrapped `forward`: that is no path of attributes. One that is
    not strict has the objects and their paths. Seen on torch 2.13.
    """
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.CUSTOM_OBJ or spec.target is None:
            continue
        constant = program.constants[spec.target]
        if isinstance(constant, FakeScriptObject):
            del program.constants[spec.target]
            spec.target = spec.target.rpartition("__self__.")[2]
            program.constants[spec.target] = constant.real_obj


def _methods(script_object: Any) -> tuple[tuple[str, str], ...]:
    methods = [script_object._get_method(name) for name in script_object._method_names()]
    return tuple((method.name, str(method.schema)) for method in methods if not method.name.startswith("__"))


def _file(owner: type) -> str:
    try:
        return inspect.getsourcefile(owner) or ""
    except (OSError, TypeError):  # Typed in, or compiled.
        return ""
