"""Objects of C++ classes (TorchBind): those that a failed export met, and their states.

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

from .fake_tensors import FakeTensorMode

TORCH_CLASS_NAMESPACES = frozenset(
    (
        "_nnapi",
        "aten",
        "backendutils",
        "c10d",
        "cuda",
        "dist_c10d",
        "dist_rpc",
        "mkldnn",
        "mkldnn_prepacked",
        "onednn",
        "profiling",
        "quantized",
        "rnn",
        "sparse",
        "static_runtime",
        "vulkan",
        "xnnpack",
    )
)
"""Where torch registers classes of its own, in one build or the other."""

_PREFIX = "__torch__.torch.classes."


@dataclass(frozen=True)
class HeldObject:
    """An object of a C++ class, and the module that holds it.

    Args:
        class_name: `profiling::_ScriptProfile`.
        methods: Name and schema text of each method.
        attribute: Name of the module's attribute; empty where it is not an attribute.
        owner_file, owner_class: Where the module's class is defined; empty where that is not known.
    """

    class_name: str
    methods: tuple[tuple[str, str], ...]
    attribute: str = ""
    owner_file: str = ""
    owner_class: str = ""


def held_script_object(error: BaseException) -> HeldObject | None:
    """Return the object that an export was working on when it raised, from the frames of the traceback."""
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
    """Return `signal_ops::Polynomial`"""
    return class_of(str(script_object._type()))


def class_of(qualified: str) -> str:
    """Return the name of a class in C++, of `qualified_name`."""
    return qualified.removeprefix(_PREFIX).replace(".", "::")


def is_class_of_torch(name: str) -> bool:
    """Return whether torch itself registers the class of this name, without any library."""
    return name.partition("::")[0] in TORCH_CLASS_NAMESPACES


def qualified_name(name: str) -> str:
    """Return the name of a class as programs have it, `__torch__.torch.classes.signal_ops.Polynomial`."""
    return _PREFIX + name.replace("::", ".")


def is_class_registered(name: str) -> bool:
    """Return whether a library that is loaded has the class of this name."""
    try:
        torch._C._get_custom_class_python_wrapper(*name.split("::"))
    except RuntimeError:
        return False
    return True


def fake_object(script_object: torch.ScriptObject, mode: FakeTensorMode) -> Any:
    """Return the fake of an object, whose methods take and give fakes of `mode`; None where none can be made.

    None is for a class without a fake class, or one whose `__obj_flatten__` the fake class does not take.
    """
    try:
        return maybe_to_fake_obj(mode, script_object)
    except (RuntimeError, AttributeError, TypeError, ValueError):
        return None


def is_fake_object(value: object) -> bool:
    """Return whether the value is the fake of an object."""
    return isinstance(value, FakeScriptObject)


def pickled_object(script_object: torch.ScriptObject) -> bytes:
    """Return the record that `torch.export.save` writes of an object; the same for the same state.

    Raises:
        ValueError: the class has no `def_pickle`.
    """
    if not cast("Any", script_object)._has_method("__getstate__"):
        raise ValueError(f"the class {class_name(script_object)} has no `def_pickle`")
    pickled: bytes = torch._C._pickle_save(script_object)
    return pickled


def state_text(script_object: torch.ScriptObject) -> str:
    """Return what `__getstate__` of an object's class gives, on one line of at most 200 characters."""
    state, _ = cast("Any", script_object).__getstate__()
    return " ".join(repr(state).split())[:200]


def object_of_state(name: str, state: Any) -> torch.ScriptObject:
    """Return an object of a registered class, made by the `__setstate__` of the class's `def_pickle`.

    Nothing is unpickled: torch holds the state against the schema of `__setstate__` and hands it over.

    Args:
        state: Numbers, strings and tensors, in tuples, lists and dicts.
    Raises:
        ValueError: the class takes no such state, and why, in one line.
    """
    made = torch.ScriptObject.__new__(torch.ScriptObject)
    try:
        made.__setstate__((state, qualified_name(name)))  # type: ignore[attr-defined]
    except (RuntimeError, TypeError, ValueError, OverflowError, IndexError) as error:
        reason = (str(error).splitlines() or [""])[0].partition(" (#define ")[0]
        raise ValueError(f"the class {name} does not accept the state: {reason}") from error
    return made


def hold_real_objects(program: ExportedProgram) -> None:
    """Put the objects of C++ classes themselves among the program's constants, where their fakes are.

    A strict export leaves the fakes there, with which the program cannot run, and names them by TorchDynamo's
    way to the object, through the closure of a wrapped `forward`: that is not a path of attributes. One that
    is not strict has the objects and their paths. Seen on torch 2.13.
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
