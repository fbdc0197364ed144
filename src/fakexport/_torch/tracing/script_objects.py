"""Objects of C++ classes (TorchBind): find the object that made an export fail, and save and restore states.

Seen on torch 2.11 to 2.13.

Source: `torch/_library/fake_class_registry.py:maybe_to_fake_obj`,
`torch/_export/non_strict_utils.py:_fakify_script_objects`; for states, the pickling of `ScriptObject` in
`torch/csrc/jit/python/script_init.cpp`.
"""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch._library.fake_class_registry import FakeScriptObject, maybe_to_fake_obj
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fakexport._torch.emulation.fake_tensors import FakeTensorMode
from fakexport._torch.operators.packaged_operators import CLASS_PREFIX, class_of

TORCH_CLASS_NAMESPACES = frozenset((
    "_nnapi", "aten", "backendutils", "c10d", "cuda", "dist_c10d", "dist_rpc", "mkldnn",
    "mkldnn_prepacked", "onednn", "profiling", "quantized", "rnn", "sparse", "static_runtime", "vulkan",
    "xnnpack",
))  # fmt: skip
"""Namespaces of the classes that torch itself registers in any of its builds."""


@dataclass(frozen=True)
class HeldObject:
    """An object of a C++ class, and the module that has it as an attribute.

    Args:
        owner_file, owner_class: The file that defines the module's class, and the class; empty if unknown.
    """

    class_name: str  # For example `profiling::_ScriptProfile`.
    methods: tuple[tuple[str, str], ...]  # Name and schema text of each method.
    attribute: str = ""  # Name of the module's attribute; empty if no module has the object as an attribute.
    owner_file: str = ""
    owner_class: str = ""


def held_script_object(error: BaseException) -> HeldObject | None:
    """Return the object that an export was processing when it raised an error, or None.

    The object is found in the frames of the traceback.
    """
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
    """Return the C++ class name of an object, such as `signal_ops::Polynomial`."""
    return class_of(str(script_object._type()))


def is_class_of_torch(name: str) -> bool:
    """Return whether torch itself registers this class, so that no library must be loaded for it."""
    return name.partition("::")[0] in TORCH_CLASS_NAMESPACES


def qualified_name(name: str) -> str:
    """Return the class name used in programs, `__torch__.torch.classes.signal_ops.Polynomial`."""
    return CLASS_PREFIX + name.replace("::", ".")


def is_class_registered(name: str) -> bool:
    """Return whether a loaded library has registered this class."""
    try:
        torch._C._get_custom_class_python_wrapper(*name.split("::"))
    except RuntimeError:
        return False
    return True


def fake_object(script_object: torch.ScriptObject, mode: FakeTensorMode) -> Any:
    """Return a fake version of an object. Its methods return fake tensors of `mode`.

    Return None if the class has no fake class, or if the fake class rejects the result of `__obj_flatten__`.
    """
    try:
        return maybe_to_fake_obj(mode, script_object)
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return None


def is_fake_object(value: object) -> bool:
    """Return whether the value is the fake of a C++ object."""
    return isinstance(value, FakeScriptObject)


def pickled_object(script_object: torch.ScriptObject) -> bytes:
    """Return the bytes that `torch.export.save` writes for an object. They are equal for equal states.

    Raises:
        ValueError: The class has no `def_pickle`.
    """
    if not cast("Any", script_object)._has_method("__getstate__"):
        raise ValueError(f"the class {class_name(script_object)} has no `def_pickle`")
    pickled: bytes = torch._C._pickle_save(script_object)
    return pickled


def state_text(script_object: torch.ScriptObject) -> str:
    """Return the result of an object's `__getstate__` on one line of at most 200 characters."""
    state, _ = cast("Any", script_object).__getstate__()
    return " ".join(repr(state).split())[:200]


def object_of_state(name: str, state: Any) -> torch.ScriptObject:
    """Return an object of a registered class, created by the `__setstate__` of its `def_pickle`.

    Nothing is unpickled: torch checks the state against the schema of `__setstate__`, and passes it on.

    Raises:
        ValueError: The class does not accept the state. The message is one line.
    """
    made = torch.ScriptObject.__new__(torch.ScriptObject)
    try:
        made.__setstate__((state, qualified_name(name)))  # type: ignore[attr-defined]
    except (RuntimeError, TypeError, ValueError, OverflowError, IndexError) as error:
        reason = (str(error).splitlines() or [""])[0].partition(" (#define ")[0]
        raise ValueError(f"the class {name} does not accept the state: {reason}") from error
    return made


def hold_real_objects(program: ExportedProgram) -> None:
    """Replace fakes of C++ objects in the program's constants with the real objects.

    A strict export leaves the fakes in the constants, and the program cannot run with them. It also names
    them after TorchDynamo's sources, which contain the closure of a wrapped `forward`, so the names are
    replaced with attribute paths. A non-strict export stores real objects under attribute paths. Seen on
    torch 2.13.
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
    except (OSError, TypeError):  # Defined interactively, or compiled.
        return ""
