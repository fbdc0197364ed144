"""Suggest how to put the operands of an operator on one device: FE502."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fakexport.report.diagnose.marked_code import assigned, replaced_node, text_of, value_of
from fakexport.rules.diagnostics import Change, Fix, Span, function_at, source_text

_FACTORIES = re.compile(
    "arange|as_tensor|empty|eye|full|linspace|logspace|ones|rand|randint|randn|tensor|tril_indices"
    "|triu_indices|zeros"
)


def device_repair(span: Span | None, variables: Mapping[str, Any]) -> Fix:
    """Return a fix for a device mismatch: create the CPU tensor on the other operand's device."""
    devices = {
        name: value.device.type
        for name, value in variables.items()
        if hasattr(value, "device") and hasattr(value, "dtype")
    }
    function = function_at(span)
    if span is None or function is None:
        return _GENERAL
    marked = list(_marked(span, function))
    attributes = {
        text_of(node): value.device.type
        for node in marked
        if isinstance(node, ast.Attribute) and hasattr(value := value_of(node, variables), "dtype")
    }
    devices |= attributes
    used = [text for node in marked if (text := text_of(node)) in devices]
    for node in marked:
        if isinstance(node, ast.Call) and _is_factory(node):
            there = _elsewhere(devices, used or [*devices])
            return _created(span, node, there) if there else _GENERAL
    name = next((name for name in used if devices[name] == "cpu"), None)
    if name is None:
        return _GENERAL
    made = assigned(name, span)
    if len(made) == 1 and isinstance(made[0].value, ast.Call) and _is_factory(made[0].value):
        known = _assigned_before(function, made[0].lineno)
        if there := _elsewhere(devices, [each for each in devices if each in known]):
            return _created(span, made[0].value, there, f" at line {made[0].lineno}")
    there = _elsewhere(devices, [*used, *devices])
    use = next(node for node in marked if text_of(node) == name)
    if there is None:
        return _GENERAL
    moved = f"{name}.to({there}.device)"
    message = f"move `{name}` to the device of `{there}`: `{moved}`"
    return Fix(message, changes=replaced_node(span, use, moved))


_GENERAL = Fix("create both tensors on the same device: pass `device=` when creating the CPU tensor")


def _created(span: Span, call: ast.Call, there: str, where: str = "") -> Fix:
    device = ast.keyword("device", ast.Attribute(ast.Name(there), "device"))
    others = [each for each in call.keywords if each.arg != "device"]
    better = text_of(ast.Call(call.func, call.args, [*others, device]))
    changes: tuple[Change, ...] = replaced_node(span, call, better)
    return Fix(
        f"create it on the same device as the other tensor, `device={there}.device`{where}: `{better}`",
        changes=changes,
    )


def _marked(span: Span, function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield the AST nodes of the marked expression, with their positions in the file."""
    text = source_text(span)
    whole = next(
        (
            node
            for node in ast.walk(function)
            if isinstance(node, ast.expr)
            and node.lineno == span.line
            and text is not None
            and text_of(node) == _normal(text)
        ),
        None,
    )
    for node in ast.walk(whole) if whole is not None else ():
        if isinstance(node, ast.expr):
            yield node


def _normal(text: str) -> str:
    try:
        return text_of(ast.parse(text, mode="eval"))
    except SyntaxError:
        return text


def _is_factory(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(ast.Name("torch"), name):
            return _FACTORIES.fullmatch(name) is not None
    return False


def _elsewhere(devices: Mapping[str, str], names: list[str]) -> str | None:
    return next((name for name in names if devices[name] not in ("cpu", "meta")), None)


def _assigned_before(function: ast.FunctionDef, line: int) -> set[str]:
    """Return the parameters, and the variables assigned before `line`, that no later line assigns again."""
    given = {
        each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    }
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno >= line
    }
    earlier = {
        target.id
        for node in function.body
        if isinstance(node, ast.Assign) and node.lineno < line
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return (given | earlier) - stored
