"""Detect unsupported operators and Python code: FE206, FE208, FE210, FE401, FE404, FE405, FE502, FE912."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fakexport._torch.operators.operator_schema import (
    OperatorSchema,
    argument_values,
    is_python_operator,
    operator_schema,
)
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.operator_faults import OperatorFault
from fakexport._torch.tracing.script_objects import held_script_object
from fakexport.exporting.capture import CaptureFailure, FunctorchError, LostWriteError, ShardingChangesResult
from fakexport.report.diagnose.custom_operators import NotComparable, made_up_inputs
from fakexport.report.diagnose.device_repairs import device_repair
from fakexport.report.diagnose.forward_repairs import QUANTIZED
from fakexport.report.diagnose.labels import labels_at, labels_of, marked, of_failure, torch_says
from fakexport.report.diagnose.repairs import cast_repair, general_repair
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix, attribute_span

_NO_FAKE_KERNEL = (
    re.compile(r"There was no fake impl registered for <CustomOpDef\((?P<op>[\w:.]+)\)>"),
    re.compile(r"(?P<op>[\w]+[:.]+[\w.]+): attempted to run this operator with Meta tensors"),
    re.compile(r"Could not run '(?P<op>[\w:.]+)' with arguments from the 'Meta' backend"),
    re.compile(r"There was no fake impl registered for (?P<op>[\w:.]+)"),
    re.compile(r"Operator does not support running with fake tensors: (?P<op>[\w:.]+)"),
    re.compile(r"Unsupported operator: (?P<op>[\w:.]+)"),
)
_NO_FAKE_CLASS = re.compile(r"registered a fake class|__obj_flatten__")
_UNSUPPORTED = ("UnsupportedOperatorException", "UnsupportedFakeTensorException")
# Fake mode's message for a tensor inside a function transform.
_OF_A_LEVEL = "'Tensor' object has no attribute 'constant'"
_DIFFERENT_DEVICES = re.compile(
    r"(?:found at least two devices, (?P<a>[\w:]+) and (?P<b>[\w:]+)"
    r"|Unhandled FakeTensor Device Propagation for (?P<op>[\w.]+), found two different devices "
    r"(?P<c>[\w:]+), (?P<d>[\w:]+)"
    r"|Mismatching [\w.]+ device between \w+ \((?P<e>[\w:]+)\) and \w+ \((?P<f>[\w:]+)\)"
    r"|Tensor on device (?P<g>[\w:]+) is not on the expected device (?P<h>[\w:]+)!)"
)


def missing_fake_kernel(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE401: an operator has no fake kernel."""
    found = next((m for text in failure.messages for p in _NO_FAKE_KERNEL if (m := p.search(text))), None)
    unsupported = next((i for i, name in enumerate(failure.error_types) if name in _UNSUPPORTED), None)
    if found is None and unsupported is None:
        return None
    operator = _qualified(found["op"] if found else failure.messages[unsupported or 0])
    is_quantizing = operator.startswith("aten::") and "quantize" in operator
    known = QUANTIZED if is_quantizing else None
    return rule("FE401").diagnostic(
        labels=labels_of(failure, f"{operator} has no fake kernel"),
        notes=(f"operator: {operator}",),
        fix=Fix(
            known or _registration(operator, None if failure.call is None else observed_results(failure.call))
        ),
        fault="torch" if operator.startswith("aten::") else None,
    )


def _registration(operator: str, results: str | None) -> str:
    """Return a fix with the fake kernel to register, which raises if `results` is None."""
    skeleton = fake_kernel_skeleton(operator, results)
    if results is None:
        return f"register a fake kernel, and complete its return value:\n{skeleton}"
    known = "its output shapes match the real kernel on synthetic data"
    return f"register this fake kernel; {known}:\n{skeleton}"


def missing_fake_class(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE404: a C++ class has no fake class."""
    if not any(_NO_FAKE_CLASS.search(text) for text in failure.messages):
        return None
    held = None if failure.error is None else held_script_object(failure.error)
    if held is None:
        return None
    span = attribute_span(held.owner_file, held.owner_class, held.attribute)
    where = f"self.{held.attribute}" if held.attribute else "an input"
    return rule("FE404").diagnostic(
        labels=labels_at(span, f"`{where}` is an object of the C++ class {held.class_name}"),
        notes=(f"class: {held.class_name}", *torch_says(failure)),
        fix=Fix(f"register a fake class:\n{fake_class_skeleton(held.class_name, held.methods)}"),
    )


def unsupported_python(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE206: TorchDynamo cannot trace the code."""
    if failure.error_types[0] not in ("Unsupported", "InternalTorchDynamoError"):
        return None
    fix = Fix(
        "export without --strict, or skip the line while exporting: `if not torch.compiler.is_exporting():`"
    )
    return of_failure("FE206", failure, f"TorchDynamo cannot trace {marked(failure)}", fix)


def transform_lost(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE210: the trace lost the input of a `torch.func` derivative."""
    is_lost = isinstance(failure.error, FunctorchError) or any(
        _OF_A_LEVEL in text for text in failure.messages
    )
    if not is_lost:
        return None
    fix = Fix(
        "compute the derivative with torch.autograd: `torch.autograd.grad` within `torch.enable_grad()` on "
        "`x.detach().requires_grad_()`, or `torch.autograd.functional.jacobian`; do not use "
        "--strict"
    )
    return of_failure("FE210", failure, "the trace loses the input of the derivative here", fix)


def write_lost(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE912: `forward` writes to a tensor, and the program would lose this write."""
    if not isinstance(failure.error, LostWriteError):
        return None
    return rule("FE912").diagnostic(
        labels=labels_of(failure, failure.error.label),
        notes=(str(failure.error),),
        fix=Fix(failure.error.fix),
    )


def sharding_changes_result(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE405: the programs of the ranks compute a different result than the unsharded model."""
    error = failure.error
    if not isinstance(error, ShardingChangesResult):
        return None
    notes = [str(error)]
    if error.part_bytes is not None:
        notes.append(
            f"DTensor would gather the shards here: each rank would receive {error.part_bytes:,} "
            "bytes from every other rank in every call"
        )
    return rule("FE405").diagnostic(
        labels=labels_of(failure, "each rank has only a shard of this"),
        notes=tuple(notes),
        fix=Fix(
            "use a size of the unsharded model, from the config or `out_features`, instead of the "
            "size of a tensor"
            if error.is_number
            else "change the style of this module in the plan (--parallel tp=N,plan=FILE.json), or "
            "remove the module from the plan"
        ),
    )


def module_moved(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE208: `forward` casts or moves the weights of a module."""
    if not any("Couldn't swap" in text for text in failure.messages):
        return None
    fix = cast_repair(failure.culprit, failure.culprit_locals)
    if fix is None:
        general = (
            "create the module with that dtype and device in the constructor, and convert its "
            "input instead: `self.norm(x.to(self.norm.weight.dtype))`"
        )
        fix = Fix(general_repair(general, failure.culprit))
    return of_failure("FE208", failure, f"{marked(failure)} replaces the weights of a module", fix)


def _qualified(name: str) -> str:
    """Return the name in the form `acme::scale`, from `acme.scale.default` or `acme::scale`."""
    parts = re.split(r"::|\.", name.strip().strip("'\""))
    return "::".join(parts[:2])


def tensors_on_different_devices(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE502: the operands of an operator are on different devices."""
    found = next((m for text in failure.messages if (m := _DIFFERENT_DEVICES.search(text))), None)
    if found is None:
        return None
    first, second = (name for key in "abcdefgh" if (name := found[key]))
    fix = device_repair(failure.culprit, failure.culprit_locals)
    message = f"{marked(failure)} gets tensors on {first} and on {second}"
    return of_failure("FE502", failure, message, fix)


def observed_results(call: OperatorFault) -> str | None:
    """Run the operator once, and return code for a fake kernel's results, such as `torch.empty_like(x)`.

    Only operators that `torch.library.custom_op` defines are run, because their kernels can raise an error
    but not crash. A result is assumed to have the shape of an argument if both shapes are equal and no other
    argument can explain the sizes.

    Returns:
        None if the operator cannot be run, or its result shapes have more than one explanation.
    """
    if not is_python_operator(call.operator):
        return None
    try:
        args, kwargs = made_up_inputs((call.args, call.kwargs))
        given = argument_values(call.overload, args, kwargs)
        with torch.no_grad():
            results = call.overload(*args, **kwargs)
    except (Exception, NotComparable):
        return None
    texts = [_like(result, given) for result in (results if isinstance(results, tuple) else (results,))]
    return None if None in texts else ", ".join(text for text in texts if text)


def _like(result: Any, given: dict[str, Any]) -> str | None:
    if not isinstance(result, torch.Tensor) or not result.is_contiguous():
        return None
    for name, value in given.items():
        if not isinstance(value, torch.Tensor) or value.shape != result.shape or not value.is_contiguous():
            continue
        others = [other for key, other in given.items() if key != name]
        if not _is_only_explanation(value, others):
            return None
        return f"torch.empty_like({name}{'' if value.dtype is result.dtype else f', dtype={result.dtype}'})"
    return None


def _is_only_explanation(tensor: torch.Tensor, others: Iterable[Any]) -> bool:
    """Return whether a tensor's sizes differ from the sizes of other arguments and from each other."""
    sizes = list(tensor.shape)
    if len(set(sizes)) < len(sizes) or any(size < 2 for size in sizes):
        return False
    for leaf in tree_leaves(list(others)):
        if isinstance(leaf, torch.Tensor):
            if leaf.shape != tensor.shape and set(leaf.shape) & set(sizes):
                return False
        elif isinstance(leaf, int) and leaf in sizes:
            return False
    return math.prod(sizes) > 0


_IN_CPP = {
    "Tensor": "const at::Tensor&",
    "Optional[Tensor]": "const std::optional<at::Tensor>&",
    "List[Tensor]": "at::TensorList",
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "str": "std::string_view",
    "number": "const at::Scalar&",
    "List[int]": "at::IntArrayRef",
    "Optional[int]": "std::optional<int64_t>",
    "Optional[float]": "std::optional<double>",
}
_RESULTS_IN_CPP = {"Tensor": "at::Tensor", "List[Tensor]": "std::vector<at::Tensor>"}


def fake_kernel_skeleton(operator: str, results: str | None = None) -> str:
    """Return the code of a fake kernel in Python and, for a C++ operator, of a Meta kernel, from its schema.

    Args:
        operator: `acme::scale`.
        results: Source code for the results; None if their shapes are not certain. The kernel then raises
            an error, because a guessed shape would export a wrong program.
    """
    schema = operator_schema(operator)
    if schema is None:
        return (
            f'@torch.library.register_fake("{operator}")\ndef _(*args):\n    {_unfinished(operator, "...")}'
        )
    in_python = _in_python(schema, results)
    return in_python if schema.is_python else f"{in_python}\nor in C++:\n{_in_cpp(schema)}"


def _unfinished(operator: str, example: str) -> str:
    return f'raise NotImplementedError("return what {operator} returns, such as {example}")'


def fake_class_skeleton(class_name: str, methods: Sequence[tuple[str, str]]) -> str:
    """Return a fake class with the methods of a C++ class."""
    lines = [
        f'@torch._library.register_fake_class("{class_name}")',
        f"class Fake{class_name.rpartition('::')[2].strip('_')}:",
        "    def __init__(self, **state):",
        "        vars(self).update(state)",
        "    @classmethod",
        "    def __obj_unflatten__(cls, state):  # state: the pairs that `__obj_flatten__` of C++ returns",
        "        return cls(**dict(state))",
    ]
    for name, schema in methods:
        inputs, _, result = schema.partition("(")[2].rpartition(") -> ")
        names = [re.split(r"[ =]", part.strip())[1] for part in inputs.split(", ")[1:]]
        lines.append(f"    def {name}({', '.join(['self', *names])}):")
        lines.append(f"        ...  # returns {_kind(result)}")
    return "\n".join(lines)


def _kind(result: str) -> str:
    kind = result.strip().split(" ")[0]
    return "None" if kind == "NoneType" else kind


def _in_python(schema: OperatorSchema, results: str | None) -> str:
    names = ", ".join(name for name, _ in schema.arguments)
    sizes = f"{schema.first_tensor}.new_empty(sizes)" if schema.first_tensor else "torch.empty(sizes)"
    values = {"Tensor": sizes, "List[Tensor]": f"[{sizes}]"}
    example = ", ".join(values.get(kind, kind) for kind in schema.results)
    if not schema.results:
        body = "return None"
    else:
        body = _unfinished(schema.name, example) if results is None else f"return {results}"
    return f'@torch.library.register_fake("{schema.name}")\ndef _({names}):\n    {body}'


def _in_cpp(schema: OperatorSchema) -> str:
    namespace, _, name = schema.name.partition("::")
    inputs = ", ".join(f"{_IN_CPP.get(kind, kind)} {argument}" for argument, kind in schema.arguments)
    kinds = [_RESULTS_IN_CPP.get(kind) or _IN_CPP.get(kind, kind) for kind in schema.results]
    result = kinds[0] if len(kinds) == 1 else f"std::tuple<{', '.join(kinds)}>" if kinds else "void"
    unfinished = f'TORCH_CHECK_NOT_IMPLEMENTED(false, "return what {schema.name} returns: at::empty(...)");'
    return (
        f"{result} {name}_meta({inputs}) {{ {unfinished if kinds else ''} }}\n"
        f'TORCH_LIBRARY_IMPL({namespace}, Meta, m) {{ m.impl("{name}", &{name}_meta); }}'
    )
