"""Compare tensors that checkpoints omit with the values that the model's code computes."""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import torch
from torch import nn

from fakexport._torch.emulation.fake_tensors import is_fake_tensor
from fakexport._torch.operators.real_execution import real_execution
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.archive.weights.buffer_values import (
    BuiltAgain,
    Outcome,
    Reference,
    built_again,
    unsaved_tensors,
)
from fakexport.archive.weights.buffers_report import (
    BuffersReport,
    UncheckedBuffer,
    WrongBuffer,
    difference_text,
)
from fakexport.emulation.fake import Held
from fakexport.error import InvalidType
from fakexport.exporting.capture import UnboundConstant
from fakexport.rules.diagnostics import Span

# Relative tolerances for differences between the kernels of different devices. They are small enough to
# detect values that were rounded to a smaller dtype and stored in a larger one.
_TOLERANCE = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float16: 2**-9,
    torch.bfloat16: 2**-7,
}
_PLAIN = (torch.Tensor, nn.Buffer)


@one_at_a_time
def verify_buffers(
    model: nn.Module, reference: Reference | None = None, *, repair: bool = False
) -> BuffersReport:
    """Report which non-persistent buffers and plain tensors of a loaded model have wrong values.

    If a model is built on the meta device and allocated with `to_empty`, only a checkpoint provides values.
    Tensors that the checkpoint does not contain, such as rotary frequencies, masks and scales, stay
    uninitialized. This function computes their correct values by running the constructor again, without data,
    on the CPU. Weights and persistent buffers are not checked.

    Args:
        model: A model with its weights. Only `repair` changes it.
        reference: How to build the same model: a source, as for `check`, a factory, or a correct model. By
            default, a transformers model is built from its config, and any other model from attributes named
            like the constructor's parameters.
        repair: Whether to write the correct values into the wrong tensors. Devices and dtypes stay the same.

    Returns:
        The correct tensors, the wrong tensors with their faults, and the tensors that could not be checked
        because their values are random, computed from weights, or changed by `forward`.

    Raises:
        ValueError: The model cannot be built again. The message is a single line.
        TypeError: `model` is not a module.

    Reports:
        FE920.

    Example:
        >>> class Scaled(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("scale", torch.full((2,), 3.0), persistent=False)
        >>> model = Scaled()
        >>> _ = model.scale.fill_(7.0)
        >>> verify_buffers(model, repair=True).wrong[0].name, model.scale.tolist()
        ('scale', [3.0, 3.0])
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(f"verify_buffers expects a module, not {type(model).__name__}")
    known = built_again(model, reference)
    report = BuffersReport(known.origin, (), (), ())
    with real_execution(), torch.no_grad():
        for held, found in _compared(model, known):
            if isinstance(found, UncheckedBuffer):
                report = replace(report, unchecked=(*report.unchecked, found))
            elif found is None:
                report = replace(report, right=(*report.right, held.path))
            else:
                report = replace(report, wrong=(*report.wrong, found[0]))
                if repair:
                    _put(held, found[1])
    return replace(report, is_repaired=repair)


Finding = UncheckedBuffer | tuple[WrongBuffer, torch.Tensor] | None
"""None if the tensor is correct, its fault and correct value if not, or why it was not checked."""


def _compared(model: nn.Module, known: BuiltAgain) -> Iterator[tuple[Held, Finding]]:
    """Yield each tensor that checkpoints omit, and its finding."""
    owners = dict(model.named_modules(remove_duplicate=False))
    for held in unsaved_tensors(model).values():
        path, _, name = held.path.partition("[")[0].rpartition(".")
        yield held, _finding(held, owners.get(path, model), name, known.outcomes(held.path))


def _finding(held: Held, owner: nn.Module, name: str, outcomes: list[Outcome]) -> Finding:
    kind = type(held.tensor)
    if kind not in _PLAIN or is_fake_tensor(held.tensor) or held.tensor.layout != torch.strided:
        return UncheckedBuffer(held.path, f"it is a {kind.__name__}, not a plain tensor with data")
    if not outcomes:
        return UncheckedBuffer(held.path, "the constructor does not create it")
    values = [outcome for outcome in outcomes if isinstance(outcome, torch.Tensor)]
    if not values:
        (reason,) = {outcome.detail for outcome in outcomes[:1] if isinstance(outcome, UnboundConstant)}
        return UncheckedBuffer(held.path, reason)
    if any(_is_close(held.tensor, value) for value in values):
        return None
    difference = _difference(held.tensor, values[-1])
    is_number = not math.isnan(difference)
    if is_number and not held.tensor.is_meta and written_at_run_time(owner, name):
        return UncheckedBuffer(held.path, "forward changes it")
    wrong = WrongBuffer(held.path, _fault(held.tensor, values[-1]), difference, creation_span(owner, name))
    return wrong, values[-1]


def _is_close(found: torch.Tensor, value: torch.Tensor) -> bool:
    if found.is_meta or found.shape != value.shape:
        return False
    here, expected = found.detach().cpu(), value.detach().cpu().to(found.dtype)
    if found.dtype not in _TOLERANCE:
        return here.float().equal(expected.float()) if found.is_floating_point() else here.equal(expected)
    tolerance = _TOLERANCE[found.dtype]
    finite = expected.abs()[torch.isfinite(expected)]
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(here, expected, rtol=tolerance, atol=tolerance * largest / 10, equal_nan=True)


def _difference(found: torch.Tensor, value: torch.Tensor) -> float:
    """Return the largest absolute difference; NaN if an element is NaN in only one of the two tensors."""
    if found.is_meta or found.shape != value.shape:
        return float("inf")
    wide = torch.complex128 if found.is_complex() or value.is_complex() else torch.float64
    here, expected = found.detach().cpu().to(wide), value.detach().cpu().to(wide)
    same = (here == expected) | (here.isnan() & expected.isnan())
    apart = (here - expected).abs()[~same]
    return float(apart.max()) if apart.numel() else 0.0


def _fault(found: torch.Tensor, value: torch.Tensor) -> str:
    if found.is_meta:
        return "it is on the meta device and has no data"
    if found.shape != value.shape:
        return f"its shape is {list(found.shape)}, expected {list(value.shape)}"
    return difference_text(_difference(found, value))


def _put(held: Held, value: torch.Tensor) -> None:
    """Write the correct value into a tensor, or replace the tensor if it has no data or a wrong shape."""
    found = held.tensor
    if found.is_meta or found.shape != value.shape:
        device = torch.device("cpu") if found.is_meta else found.device
        held.put(value.to(device=device, dtype=found.dtype, copy=True))
    else:
        found.copy_(value)


_REGISTERING = {"register_buffer", "__setattr__"}


def creation_span(owner: nn.Module, name: str) -> Span | None:
    """Return the line that assigns `self.NAME`, preferably in the constructor."""
    found = [
        (function != "__init__", span)
        for cls in _classes(owner)
        for function, line, written in _writes(cls)
        if written == name and (span := _span(cls, function, line)) is not None
    ]
    return min(found, key=lambda item: item[0])[1] if found else None


def written_at_run_time(owner: nn.Module, name: str) -> bool:
    """Return whether `forward`, or a method that it calls directly or indirectly, writes `self.NAME`."""
    if _is_dynamic_rope(owner, name):
        return True
    classes = _classes(owner)
    calls = {function: called for cls in reversed(classes) for function, called in _calls(cls).items()}
    reached, pending = set(), ["forward"]
    while pending:
        if (function := pending.pop()) not in reached:
            reached.add(function)
            pending += calls.get(function, ())
    reached.discard("__init__")
    writes = (found for cls in classes for found in _writes(cls))
    return any(written == name and function in reached for function, _, written in writes)


def _classes(owner: nn.Module) -> list[type]:
    """Return the classes of a module, from its own class up to the last one before `nn.Module`."""
    return [cls for cls in type(owner).__mro__ if issubclass(cls, nn.Module) and cls is not nn.Module]


def _is_dynamic_rope(owner: nn.Module, name: str) -> bool:
    """Return whether transformers replaces these rotary frequencies for longer inputs.

    The code that does so is outside the module's class, so `_writes` does not find it.
    """
    kinds = getattr(owner, "rope_type", None)
    named = kinds.values() if isinstance(kinds, dict) else [kinds]
    is_frequency = name.endswith("inv_freq") and "original" not in name
    return is_frequency and any(str(kind) in ("dynamic", "longrope") for kind in named)


@cache
def _tree(cls: type) -> tuple[ast.ClassDef, str, int] | None:
    try:
        lines, first = inspect.getsourcelines(cls)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        path = inspect.getsourcefile(cls) or ""
    except (OSError, TypeError, SyntaxError):
        return None
    found = tree.body[0]
    return (found, path, first) if isinstance(found, ast.ClassDef) else None


def _functions(cls: type) -> Iterator[ast.FunctionDef]:
    if (known := _tree(cls)) is not None:
        yield from (node for node in known[0].body if isinstance(node, ast.FunctionDef))


def _span(cls: type, function: str, line: int) -> Span | None:
    known = _tree(cls)
    return known and Span(known[1], known[2] + line - 1, function=function, origin="source")


def _writes(cls: type) -> Iterator[tuple[str, int, str]]:
    """Yield the method name, line and attribute name of each write to an attribute of `self`."""
    for function in _functions(cls):
        for node in ast.walk(function):
            for name in _written(node):
                yield function.name, node.lineno, name  # type: ignore[attr-defined]


def _written(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Assign(targets):
            yield from (name for target in targets for name in _targets(target))
        case ast.AnnAssign(target) | ast.AugAssign(target):
            yield from _targets(target)
        case ast.Call(ast.Attribute(attr=called), [ast.Constant(str(name)), *_]) if called in _REGISTERING:
            yield name
        case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self"), name), called)):
            if called.endswith("_") and not called.endswith("__"):
                yield name


def _targets(target: ast.AST) -> Iterator[str]:
    match target:
        case ast.Tuple(parts) | ast.List(parts):
            for part in parts:
                yield from _targets(part)
        case ast.Subscript(value):
            yield from _targets(value)
        case ast.Attribute(ast.Name("self"), name):
            yield name


@cache
def _calls(cls: type) -> dict[str, tuple[str, ...]]:
    """Map each method to the methods that it calls on `self`."""
    called = ((function.name, ast.unparse(function)) for function in _functions(cls))
    return {name: tuple(re.findall(r"\bself\.(\w+)\(", text)) for name, text in called}
