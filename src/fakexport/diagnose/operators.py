"""Detect what a trace cannot run: FE206, FE208, FE210, FE401, FE404, FE502."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fakexport._torch.operator_schema import (
    OperatorSchema,
    argument_values,
    is_python_operator,
    operator_schema,
)
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.script_objects import held_script_object
from fakexport.capture import CaptureFailure, OperatorCall, ShardingChangesResult, TransformLost, WriteLost
from fakexport.diagnose.device_repairs import device_repair
from fakexport.diagnose.forward_repairs import QUANTIZED
from fakexport.diagnose.labels import labels_at, labels_of, of_failure, torch_says
from fakexport.diagnose.made_up_inputs import NotComparable, made_up_inputs
from fakexport.diagnose.repairs import cast_repair, general_repair
from fakexport.diagnostics import Diagnostic, Fix, attribute_span, source_text
from fakexport.rules import rule

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
_OF_A_LEVEL = "'Tensor' object has no attribute 'constant'"  # Fake mode, of a tensor of a transform's level.
_DIFFERENT_DEVICES = re.compile(
    r"(?:found at least two devices, (?P<a>[\w:]+) and (?P<b>[\w:]+)"
    r"|Unhandled FakeTensor Device Propagation for (?P<op>[\w.]+), found two different devices "
    r"(?P<c>[\w:]+), (?P<d>[\w:]+)"
    r"|Mismatching [\w.]+ device between \w+ \((?P<e>[\w:]+)\) and \w+ \((?P<f>[\w:]+)\)"
    r"|Tensor on device (?P<g>[\w:]+) is not on the expected device (?P<h>[\w:]+)!)"
)


def missing_fake_kernel(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE401: an operator can run on real data only."""
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
    """Return what to register.

    Where the results are not certain, what is printed raises until it is filled in.
    """
    skeleton = fake_kernel_skeleton(operator, results)
    if results is not None:
        return f"register one; the real kernel, run on synthetic data, returned these shapes:\n{skeleton}"
    return f"register one, and fill in what it returns:\n{skeleton}"


def missing_fake_class(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE404: an object of a C++ class has no stand-in."""
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
    """Report FE206: TorchDynamo gave up."""
    if failure.error_types[0] not in ("Unsupported", "InternalTorchDynamoError"):
        return None
    expression = source_text(failure.culprit)
    fix = Fix("export without --strict, or guard the line: `if not torch.compiler.is_exporting():`")
    message = f"TorchDynamo cannot trace `{expression}`" if expression else "here"
    return of_failure("FE206", failure, message, fix)


def transform_lost(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE210: what a derivative of `torch.func` is taken of is unknown to the trace."""
    is_lost = isinstance(failure.error, TransformLost) or any(
        _OF_A_LEVEL in text for text in failure.messages
    )
    if not is_lost:
        return None
    fix = Fix(
        "compute it with torch.autograd: `torch.autograd.grad` in `torch.enable_grad()` on "
        "`x.detach().requires_grad_()`, or `torch.autograd.functional.jacobian`; without --strict"
    )
    return of_failure("FE210", failure, "the input of the derivative is lost here", fix)


def write_lost(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE912: the program would not keep what `forward` writes."""
    if not isinstance(failure.error, WriteLost):
        return None
    return rule("FE912").diagnostic(
        labels=labels_of(failure, "written here"), notes=(str(failure.error),), fix=Fix(failure.error.fix)
    )


def sharding_changes_result(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE405: the programs of the ranks do not compute what the model computes."""
    error = failure.error
    if not isinstance(error, ShardingChangesResult):
        return None
    notes = [str(error)]
    if error.part_bytes is not None:
        notes.append(
            "DTensor would gather the parts here: a rank would receive "
            f"{error.part_bytes:,} bytes from each other rank in every call"
        )
    return rule("FE405").diagnostic(
        labels=labels_of(failure, "a rank has a part of this"),
        notes=tuple(notes),
        fix=Fix(
            "use the size of the whole model, which its config or `out_features` has, instead of the size of "
            "a tensor"
            if error.is_number
            else "change the style of this module in the plan (--parallel tp=N,plan=FILE.json), or leave the "
            "module out of it"
        ),
    )


def module_moved(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE208: `forward` casts or moves the weights of a module."""
    if not any("Couldn't swap" in text for text in failure.messages):
        return None
    expression = source_text(failure.culprit)
    fix = cast_repair(failure.culprit, failure.culprit_locals)
    if fix is None:
        general = (
            "create the module with that dtype and device in the constructor, and convert its input "
            "instead: `self.norm(x.to(self.norm.weight.dtype))`"
        )
        fix = Fix(general_repair(general, failure.culprit))
    return of_failure("FE208", failure, f"`{expression}` replaces weights" if expression else "here", fix)


def _qualified(name: str) -> str:
    """Return `acme::scale` of `acme.scale.default` and `acme::scale`."""
    parts = re.split(r"::|\.", name.strip().strip("'\""))
    return "::".join(parts[:2])


def tensors_on_different_devices(failure: CaptureFailure) -> Diagnostic | None:
    """Report FE502: an operator got tensors of two devices."""
    found = next((m for text in failure.messages if (m := _DIFFERENT_DEVICES.search(text))), None)
    if found is None:
        return None
    first, second = (name for key in "abcdefgh" if (name := found[key]))
    expression = source_text(failure.culprit)
    what = f"`{expression}` gets" if expression else "this gets"
    fix = device_repair(failure.culprit, failure.culprit_locals)
    return of_failure("FE502", failure, f"{what} tensors on {first} and on {second}", fix)


def observed_results(call: OperatorCall) -> str | None:
    """Return the expression of a fake kernel's results, `torch.empty_like(x)`, if one run determines it.

    Only an operator of `torch.library.custom_op` is run: its kernels can raise but not crash. A result is
    like an argument if it has its shape, and if no other size of the call could have given that shape.

    Returns:
        None where the operator cannot be run, or its shapes have more than one explanation.
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
    """Return whether the sizes of a tensor cannot be those of other arguments, or one of its own twice."""
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
    """Return a fake kernel in Python and, for an operator of C++, a Meta kernel, made from its schema.

    Args:
        operator: `acme::scale`.
        results: The expression that it returns, if that is certain. Default: it raises, since a guessed
            shape would make a program that is wrong.
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
