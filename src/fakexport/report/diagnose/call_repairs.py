"""Suggest replacements for calls that torch.export cannot trace."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from fakexport.report.diagnose.marked_code import expression_at, replaced, text_of, value_of
from fakexport.rules.diagnostics import Fix, Span

PACKED = (
    "pass the padded tensor to the RNN, without `pack_padded_sequence`, and set its output after "
    "each length to 0 with `torch.where`: the result is the same for a unidirectional RNN whose "
    "final state is not used. Otherwise, wrap packing, RNN and padding in a custom operator with "
    "a fake kernel"
)
_FIXED_COUNTS = (
    "count into a tensor of fixed size: `torch.zeros(n, dtype=torch.int64, "
    "device={0}.device).scatter_add_(0, {0}, torch.ones_like({0}))`; all values of `{0}` must be "
    "less than `n`"
)


def call_repair(span: Span | None, variables: Mapping[str, Any]) -> Fix | None:
    """Return a fix that replaces the marked call, which reads `variables`, or None if none is known."""
    call = expression_at(span)
    if span is None or not isinstance(call, ast.Call):
        return None
    if "torch.nested." in text_of(call):
        return Fix(
            "pad the tensors with `torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)`: "
            "torch.export does not support nested tensors"
        )
    if any(isinstance(value_of(each, variables), PackedSequence) for each in call.args):
        return Fix(PACKED)
    module = call.func
    if isinstance(module, ast.Attribute) and module.attr == "forward":
        module = module.value
    if isinstance(value_of(module, variables), torch.jit.ScriptModule):
        return Fix(
            f"use the original nn.Module instead of the scripted `{text_of(module)}`: torch.export traces "
            "Python code only"
        )
    keywords = {each.arg: text_of(each.value) for each in call.keywords}
    match text_of(call.func), call.args:
        case ("torch.tensor" | "torch.as_tensor", [ast.Call(ast.Attribute(value, "item"), [])]):
            return _instead(span, _converted(text_of(value), keywords), "keep the tensor: remove `.item()`")
        case ("torch.tensor" | "torch.as_tensor", [ast.List(parts) | ast.Tuple(parts)]) if parts and not any(
            isinstance(part, ast.Constant) for part in parts
        ):
            stacked = f"torch.stack([{', '.join(map(text_of, parts))}])"
            return _instead(span, _converted(stacked, keywords), "stack the tensors")
        case ("torch._assert", [condition, message]):
            checked = f"torch._assert_async({text_of(condition)}, {text_of(message)})"
            return _instead(span, checked, "use the operator for assertions")
        case ("copy.deepcopy" | "deepcopy", [value]) if isinstance(value_of(value, variables), torch.Tensor):
            return _instead(span, f"{text_of(value)}.clone()", "copy the tensor with a torch operator")
        case ("np.sqrt" | "numpy.sqrt", [number]):
            return _root(span, number)
        case ("math.sqrt", [number]) if _is_size(number, variables):
            return _root(span, number)
        case ("int", [number]) if isinstance(value_of(number, variables), torch.SymFloat):
            return Fix(
                f"make `{text_of(number)}` an integer: convert the tensor before calling `.item()`, "
                "`tensor.to(torch.int64).item()`"
            )
        case (name, [number]) if name.startswith("math.") and _is_size(number, variables):
            return Fix(
                "compute it on a tensor instead of on a number or a size: "
                f"`{name.replace('math', 'torch')}(torch.tensor(...))`"
            )
        case (name, [_]) if name.endswith("one_hot") and "num_classes" not in keywords:
            return Fix(
                f"pass the number of classes, `{name}({text_of(call.args[0])}, num_classes)`: "
                "otherwise, the largest value determines the output size"
            )
        case (_, []) if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
            return _counts(call.func.value)
        case (_, [_, *_]) if (counted := _counts(call)) is not None:
            return counted
        case ("torch.arange", [start, end, step]):
            steps = f"(({text_of(end)} - {text_of(start)}) / {text_of(step)}).ceil().to(torch.int64)"
            return Fix(
                f"count with integers, then scale: `n = {steps}.item()`, `torch._check(n >= 0)`, "
                "`start + step * torch.arange(n, device=step.device)`"
            )
    return None


def _root(span: Span, number: ast.expr) -> Fix:
    root = ast.BinOp(number, ast.Pow(), ast.Constant(0.5))
    return _instead(span, f"({text_of(root)})", "compute the square root with a Python operator")


def _counts(call: ast.Call) -> Fix | None:
    is_counting = text_of(call.func).endswith("bincount") and len(call.args) > 0
    return Fix(_FIXED_COUNTS.format(text_of(call.args[0]))) if is_counting else None


def _instead(span: Span, text: str, what: str) -> Fix:
    return Fix(f"{what}: `{text}`", changes=replaced(span, text))


def _converted(tensor: str, keywords: Mapping[str | None, str]) -> str:
    """Return source code that converts a tensor to the requested dtype and device."""
    options = ", ".join(f"{name}={value}" for name, value in keywords.items())
    return f"{tensor}.to({options})" if options else tensor


def _is_size(node: ast.expr, variables: Mapping[str, Any]) -> bool:
    """Return whether an argument is written as a tensor size, or its value is a symbolic number."""
    match node:
        case ast.Subscript(ast.Attribute(attr="shape")) | ast.Call(ast.Attribute(attr="size" | "numel")):
            return True
    return isinstance(value_of(node, variables), torch.SymInt | torch.SymFloat)
