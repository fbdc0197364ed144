"""Suggest replacements for data-dependent code, derived from the marked line."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from linecache import getline
from typing import Any

from fakexport.report.diagnose.marked_code import (
    expression_at,
    nodes_around,
    replaced,
    replaced_node,
    statement_at,
    text_of,
    value_of,
)
from fakexport.rules.diagnostics import (
    Change,
    Fix,
    Span,
    condition_at,
    function_at,
    is_formatted,
    source_text,
)

_ITEM = (
    "read it with `.item()` instead of `int()`, and declare its bounds: `n = {read}`, "
    "`torch._check(n >= 0)`, `torch._check(n <= limit)`; if `n` indexes a list, compute all "
    "results and select one: `torch.stack(results)[{tensor}]`"
)


def branch_repair(span: Span | None) -> Fix:
    """Return a fix for a condition that depends on data."""
    if span is None:
        return Fix(GENERAL)
    expression = expression_at(span)
    condition = condition_at(span)
    match expression:
        case ast.Call(ast.Attribute(attr="equal"), [first, second]):
            return Fix(
                f"compare with `({text_of(first)} == {text_of(second)}).all()`, and select with `torch.where`"
            )
        case ast.Call(ast.Attribute(attr="allclose"), [first, second]):
            close = f"torch.isclose({text_of(first)}, {text_of(second)}).all()"
            return Fix(f"compare with `{close}`, and select with `torch.where`")
        case ast.Call(ast.Name("sorted" | "max" | "min" | "any" | "all" as name), [value]):
            method = "sort().values" if name == "sorted" else f"{name}()"
            better = f"{_owner(value)}.{method}"
            return Fix(f"use `{better}` instead of Python's `{name}`", changes=replaced(span, better))
        case ast.Call(ast.Name("bool"), [value]):
            return Fix(f"keep the tensor `{text_of(value)}`, without `bool`, and select with `torch.where`")
        case ast.Compare(value, [ast.In() | ast.NotIn()], [items]):
            listed = re.sub(r"^\((.*?),?\)$", r"[\1]", text_of(items))
            isin = f"torch.isin({text_of(value)}, torch.tensor({listed}, device={_owner(value)}.device))"
            return Fix(f"test with `{isin}`, and select with `torch.where`")
        case ast.Call(function) if "distributions." in text_of(function):
            assert isinstance(expression, ast.Call)
            others = [each for each in expression.keywords if each.arg != "validate_args"]
            unchecked = ast.keyword("validate_args", ast.Constant(False))
            call = text_of(ast.Call(function, expression.args, [*others, unchecked]))
            return Fix(f"disable the validation of its arguments: `{call}`", changes=replaced(span, call))
    if condition is not None and expression is not None:
        return _statement_repair(condition, expression, span)
    return Fix(general_repair(GENERAL, span))


def _statement_repair(
    condition: ast.If | ast.IfExp | ast.While | ast.Assert, asked: ast.expr, span: Span
) -> Fix:
    test = text_of(condition.test)
    wrapped = f"({test})" if isinstance(condition.test, ast.BoolOp) else test
    mask = _mask(asked)
    match condition:
        case ast.Assert():
            skipped = f"torch.compiler.is_exporting() or {wrapped}"
            return Fix(
                f"skip the check while exporting: `assert {skipped}`",
                changes=replaced_node(span, condition.test, skipped),
            )
        case ast.If(body=[ast.Raise() | ast.Break() as left], orelse=[]):
            what = "check" if isinstance(left, ast.Raise) else "early end of the loop"
            skipped = f"not torch.compiler.is_exporting() and {wrapped}"
            return Fix(
                f"skip the {what} while exporting: `if {skipped}:`",
                changes=replaced_node(span, condition.test, skipped),
            )
        case ast.IfExp():
            chosen = f"torch.where({test}, {text_of(condition.body)}, {text_of(condition.orelse)})"
            if condition.test is not asked and test != text_of(asked):
                return Fix(general_repair(GENERAL, span))
            return Fix(f"compute both sides: `{chosen}`", changes=replaced_node(span, condition, chosen))
        case ast.If(body=[ast.Assign([ast.Name(name)], ast.Constant(None))], orelse=[]):
            return Fix(
                f"remove these lines, so that `{name}` is always applied: if it masks nothing, it "
                "has no effect",
                changes=replaced_node(span, condition, "pass"),
            )
        case ast.If(body=[ast.Assign([ast.Subscript(slice=ast.Name(name))])], orelse=[]):
            if name == mask and test == text_of(asked):
                return Fix(
                    f"remove the condition: if `{mask}` is all false, the assignment has no effect",
                    changes=replaced_node(span, condition.test, "True"),
                )
    if mask is not None and isinstance(condition, ast.If) and not condition.orelse and test != text_of(asked):
        return Fix(
            f"remove `{text_of(asked)}` from the condition, so that `{mask}` is always applied: "
            "if it masks nothing, it has no effect",
            changes=_without(asked, condition.test, span),
        )
    return Fix(general_repair(GENERAL, span))


def _without(asked: ast.expr, test: ast.expr, span: Span) -> tuple[Change, ...]:
    """Return an edit that removes the operand `asked` from an `and` expression."""
    match test:
        case ast.BoolOp(ast.And(), values):
            kept = [text_of(value) for value in values if text_of(value) != text_of(asked)]
            if len(kept) == len(values) - 1:
                return replaced_node(span, test, " and ".join(kept))
    return ()


def general_repair(repair: str, span: Span | None) -> str:
    """Return a general fix. For library code, it begins by saying that the library must be changed."""
    is_library = span is not None and "site-packages" in span.path
    return (
        f"no fix is known without changing the library's code; in that code, {repair}"
        if is_library
        else repair
    )


GENERAL = "compute both branches and select with `torch.where`, or branch with `torch.cond`"


def number_repair(span: Span | None) -> Fix:
    """Return a fix for code that needs a Python number."""
    match expression_at(span):
        case ast.Call(ast.Name("range"), [*_, _]):
            return Fix(
                "loop a fixed number of times, and keep finished results with `torch.where(i < "
                "steps, new, old)`"
            )
        case ast.Call(ast.Name("int" | "float"), [value]):
            text = text_of(value)
            read = text if ".item()" in text else f"{_owner(value)}.item()"
            return Fix(_ITEM.format(read=read, tensor=text.replace(".item()", "")))
        case ast.Call(ast.Attribute(ast.Name("math"), name), args):
            taken = ", ".join(text_of(each).removesuffix(".item()") for each in args)
            return Fix(
                f"compute it on the tensor, without `.item()`: `torch.{name}({taken})`",
                changes=replaced(span, f"torch.{name}({taken})"),
            )
        case ast.Call(ast.Name("max" | "min" as name), [value]):
            better = f"{_owner(value)}.{name}().item()"
            return Fix(f"use `{better}` instead of Python's `{name}`", changes=replaced(span, better))
    if (repeated := repeated_repair(span)) is not None:
        return repeated
    if (given := _precomputed_result(span)) is not None:
        return Fix(given)
    if span is not None and is_formatted(span):
        return Fix("skip the formatting while exporting: `if not torch.compiler.is_exporting():`")
    return Fix(general_repair(KNOWN_NUMBER, span))


def _owner(value: ast.expr) -> str:
    """Return the source code of an expression, in parentheses if they are needed before an attribute."""
    is_operation = isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp))
    return f"({text_of(value)})" if is_operation else text_of(value)


def repeated_repair(span: Span | None) -> Fix | None:
    """Return a fix for `torch.stack([x] * n)`, or None if the line does not contain such a call."""
    match expression_at(span):
        case ast.BinOp(ast.List([ast.Name(tensor)]), ast.Mult(), number) if span is not None:
            listed = f"torch.stack({source_text(span)})"
            line = getline(span.path, span.line)
            if listed in line:
                repeated = f"{tensor}.expand({text_of(number)}, *{tensor}.shape)"
                start = line.index(listed) + 1
                whole = replace(span, column=start, end_column=start + len(listed))
                return Fix(
                    f"expand the tensor instead of stacking a list: `{repeated}` instead of `{listed}`",
                    changes=replaced(whole, repeated),
                )
    return None


KNOWN_NUMBER = "use a number that is known without data, such as a config value or a shape"
PRECOMPUTED = re.compile(r"pass `(\w+)`, which")


def _precomputed_result(span: Span | None) -> str | None:
    """Return a fix that passes the enclosing function's precomputed result, if the function accepts it."""
    function = function_at(span)
    for node in function.body if function is not None else ():
        match node:
            case ast.If(test, [ast.Return(ast.Name(returned))]) if function is not None:
                popped = {
                    part.target.id: text_of(part.value.args[0]).strip("'\"")
                    for part in ast.walk(test)
                    if isinstance(part, ast.NamedExpr)
                    and isinstance(part.value, ast.Call)
                    and text_of(part.value.func).endswith("kwargs.pop")
                    and part.value.args
                }
                if returned not in popped:
                    continue
                key = popped[returned]
                dtypes = re.findall(r"dtype=torch\.(\w+)", text_of(function.body[-1]))
                return (
                    f"pass `{key}`, which `{function.name}` then returns unchanged, as an "
                    "additional input of the program: --input "
                    f"'{key}={dtypes[-1] if dtypes else 'DTYPE'}[DIMS]'"
                )
    return None


def index_repair(span: Span | None, variables: Mapping[str, Any]) -> Fix | None:
    """Return a fix for indexing with sequences of 0-d tensors; None for other code."""

    def stacked(part: ast.expr) -> str:
        is_sequence = isinstance(value_of(part, variables), (list, tuple))
        return f"torch.stack({text_of(part)})" if is_sequence else text_of(part)

    match expression_at(span):
        case ast.Subscript(value, index):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            better = f"{text_of(value)}[{', '.join(map(stacked, parts))}]"
            if any(stacked(part) != text_of(part) for part in parts):
                return Fix(
                    f"index with a stacked tensor instead of a sequence of 0-d tensors: `{better}`",
                    changes=replaced(span, better),
                )
    return None


def cast_repair(span: Span | None, variables: Mapping[str, Any]) -> Fix | None:
    """Return a fix that calls a module with converted weights instead of casting or moving the module."""
    expression = expression_at(span)
    match expression:
        case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self")) as module, attr)):
            text = text_of(module)
            moved = text_of(
                ast.Call(ast.Attribute(ast.Name("each"), attr), expression.args, expression.keywords)
            )
        case _:
            return None
    found = value_of(module, variables)
    if any(True for _ in getattr(found, "buffers", tuple)()):
        return None
    calls = [n for n in nodes_around(span) if isinstance(n, ast.Call) and text_of(n.func) == text]
    match calls:
        case [ast.Call(args=[ast.expr() as value], keywords=[]) as call] if not isinstance(
            value, ast.Starred
        ):
            weights = f"{{name: {moved} for name, each in {text}.named_parameters()}}"
            better = f"torch.func.functional_call({text}, {weights}, {text_of(value)})"
            if (statement := statement_at(span)) is not None:
                edits = (*replaced_node(span, statement, "pass"), *replaced_node(span, call, better))
                return Fix(
                    f"remove this line, and write `{better}` instead of `{text_of(call)}`",
                    changes=(Change(edits=tuple(edit for each in edits for edit in each.edits)),),
                )
    return None


def _mask(asked: ast.expr) -> str | None:
    match asked:
        case ast.Call(ast.Attribute(ast.Name(name), "any" | "all")):
            return name
    return None
