"""Suggest replacements for code that needs the concrete value of a data-dependent size: FE301."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from linecache import getlines
from typing import Any

from fakexport.report.diagnose.marked_code import (
    assigned,
    expression_at,
    nodes_around,
    replaced_node,
    statement_at,
    text_of,
)
from fakexport.report.diagnose.repairs import general_repair, repeated_repair
from fakexport.rules.diagnostics import Change, Edit, Fix, Span, condition_at

_EXPERTS = 'set `"experts_implementation": "batched_mm"` in the config'


def size_repair(span: Span | None, variables: Mapping[str, Any]) -> Fix:
    """Return a fix for code that needs a concrete size."""
    expression = expression_at(span)
    condition = condition_at(span)
    if isinstance(expression, ast.Call) and text_of(expression.func) == "len":
        return Fix(
            f"use `{text_of(expression.args[0])}.shape[0]` instead of `len`; if the comparison always has "
            "the same result, assert it before: `torch._check(n > 2)`; otherwise, count with a sum and "
            "select with `torch.where`"
        )
    match condition:
        case ast.If(body=[ast.Continue()], orelse=[], test=ast.Compare(ops=[ast.Eq()])):
            skipped = f"not torch.compiler.is_exporting() and {text_of(condition.test)}"
            return Fix(
                "skip the check while exporting, if the rest of the loop body has no effect for "
                f"size 0: `if {skipped}:`",
                changes=replaced_node(span, condition.test, skipped),
            )
    if condition is not None:
        return _one_way(
            expression or condition.test, span, "; if neither always holds, mask with `torch.where`"
        )
    if isinstance(expression, (ast.ListComp, ast.Name)):
        loop = (
            _every_index(expression, span, variables)
            if isinstance(expression, ast.Name) and span is not None
            else None
        )
        changes = () if loop is None else loop.changes
        way = "`for i in range(number):`" if loop is None else loop.message
        loop_text = f"{EVERY_INDEX}, {way}, {_ADDS_NOTHING}"
        # The setting has no effect on classes without the decorator, such as those of LongCat-Flash.
        has_others = span is not None and "@use_experts_implementation" in "".join(getlines(span.path))
        if not has_others and (name := _supports_batched_mm(variables.get("self"))) is not None:
            return Fix(
                f"decorate `{name}` with `@use_experts_implementation` of `transformers.integrations` and "
                f"{_EXPERTS}; or {loop_text}"
            )
        if has_others:
            return Fix(f"{_EXPERTS}, or {loop_text}")
        return Fix(loop_text, changes=changes)
    if isinstance(expression, ast.Compare):
        return _one_way(expression, span)
    if (repeated := repeated_repair(span)) is not None:
        return repeated
    match expression:
        case ast.Call(ast.Attribute(listed, "tolist")):
            return Fix(
                f"keep the tensor `{text_of(listed)}`, without `.tolist()`: its length is known "
                "only at run time"
            )
    return Fix(
        general_repair(
            "keep the shape fixed and mask with `torch.where`, or bound the size with `torch._check`", span
        )
    )


_CALL = ["self", "hidden_states", "top_k_index", "top_k_weights"]


def _supports_batched_mm(experts: Any) -> str | None:
    """Return the class name of an MoE experts module that transformers' `batched_mm` can run; otherwise None.

    `batched_mm` requires `_apply_gate` and exactly the parameters `gate_up_proj` and `down_proj`, without
    biases or additional experts.
    """
    if not type(experts).__module__.startswith("transformers."):
        return None
    shapes = {
        name: tuple(each.shape)
        for name, each in getattr(experts, "_parameters", {}).items()
        if each is not None
    }
    number = getattr(experts, "num_experts", None)
    match shapes:
        case {"gate_up_proj": (first, wide, hidden), "down_proj": (second, out, narrow), **others} if (
            not others
            and (first, second, wide, out) == (number, number, 2 * narrow, hidden)
            and "_apply_gate" in vars(type(experts))
            and list(inspect.signature(type(experts).forward).parameters) == _CALL
        ):
            return type(experts).__name__
    return None


def division_repair(span: Span | None) -> Fix | None:
    """Return a fix for `int(size / 2)`, which specializes the size, or None if there is no such code."""
    for node in _calls_at(span):
        match node:
            case ast.Call(ast.Name("int"), [ast.BinOp(left, ast.Div(), right)]) if isinstance(
                right, ast.Constant
            ) and isinstance(right.value, int):
                divided = text_of(ast.BinOp(left, ast.FloorDiv(), right))
                return Fix(
                    f"divide as integers: `{divided}` instead of `{text_of(node)}`, which torch "
                    "specializes to a constant",
                    changes=replaced_node(span, node, f"({divided})"),
                )
    return None


def function_repair(span: Span | None) -> Fix | None:
    """Return a fix for `math.sqrt(size)`, `float(size)` and similar calls, which specialize the size."""
    for node in _calls_at(span):
        match text_of(node.func), node.args:
            case "math.sqrt", [size]:
                better = f"({text_of(size)} ** 0.5)"
            case "float", [size]:
                better = f"({text_of(size)} * 1.0)"
            case ("math.exp" | "math.log" | "math.log2" | "math.log10") as name, [size]:
                better = f"torch.{name.removeprefix('math.')}(torch.tensor({text_of(size)}))"
            case _:
                continue
        if not isinstance(size, ast.Constant):
            return Fix(
                f"write `{better}` instead of `{text_of(node)}`, which torch specializes to a constant",
                changes=replaced_node(span, node, better),
            )
    return None


def _calls_at(span: Span | None) -> Iterator[ast.Call]:
    for node in nodes_around(span):
        if isinstance(node, ast.Call) and span is not None and node.lineno == span.line:
            yield node


EVERY_INDEX = "loop over all possible indices"
_ADDS_NOTHING = "if an empty index has no effect"


def _every_index(rows: ast.Name, span: Span, variables: Mapping[str, Any]) -> Fix | None:
    """Return a fix that replaces a loop over the rows of `nonzero()` with a loop over every index."""
    loops = (node for node in nodes_around(span) if isinstance(node, ast.For))
    loop = next((node for node in loops if node.iter.lineno == span.line), None)
    made = assigned(rows.id, span)
    if loop is None or not made or not isinstance(loop.target, ast.Name) or text_of(loop.iter) != rows.id:
        return None
    each = loop.target.id
    match made[-1].value:
        case ast.Call(ast.Attribute(ast.Name("torch"), "nonzero"), [counted]) | ast.Call(
            ast.Attribute(counted, "nonzero"), []
        ):
            number = f"range({_length(counted, variables)})"
        case _:
            return None
    read, has_others = _reads(loop, each)
    shape: tuple[Any, ...] = getattr(variables.get(rows.id), "shape", ())
    is_number, is_row = len(shape) == 1, len(shape) == 2 and shape[1] == 1
    if is_row and not any("item()" in text or text.startswith("int(") for text in read):
        listed = f"[[i] for i in {number}]"
        return Fix(f"with `{listed}` instead of `{rows.id}`", changes=replaced_node(span, loop.iter, listed))
    if is_number or (is_row and not has_others):
        changed = "".join(f" and `{each}` instead of `{text}`" for text in sorted(read))
        edits = [Edit.of(span.path, loop.iter, number)]
        edits += [
            Edit.of(span.path, node, each)
            for statement in loop.body
            for node in ast.walk(statement)
            if isinstance(node, ast.expr) and text_of(node) in read
        ]
        return Fix(f"with `{number}` instead of `{rows.id}`{changed}", changes=(Change(edits=tuple(edits)),))
    return None


def is_of_index(asked: Span, rows: Span) -> bool:
    """Return whether a condition in a loop over rows depends only on the row's index.

    If the loop is changed to run over all possible indices, the index becomes a Python number.
    """
    expression = expression_at(asked)
    for loop in nodes_around(asked) if asked.path == rows.path else ():
        match loop:
            case ast.For(ast.Name(each)) if (
                loop.iter.lineno == rows.line < asked.line <= (loop.end_lineno or 0)
                and expression is not None
            ):
                names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
                written = [
                    text_of(node.value)
                    for node in ast.walk(loop)
                    if isinstance(node, ast.Assign) and each in map(text_of, node.targets)
                ]
                read = {f"{each}[0]", f"{each}.item()", f"{each}[0].item()"}
                read |= {f"int({each})", f"int({each}[0])"}
                return each in names <= {each, "self"} and set(written) <= read
    return False


def _reads(loop: ast.For, name: str) -> tuple[set[str], bool]:
    """Return the code that reads a row's index in a loop, and whether the loop has other uses of the row."""
    read, covered = set(), set()
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    for node in nodes:
        if id(node) in covered:
            continue
        match node:
            case (
                ast.Call(ast.Name("int"), [ast.Call(ast.Attribute(value, "item"))])
                | ast.Call(ast.Name("int"), [value])
                | ast.Call(ast.Attribute(value, "item"))
                | ast.Subscript(value, ast.Constant(0))
            ) if isinstance(value, ast.Name) and value.id == name:
                read.add(text_of(node))
                covered |= {id(inner) for inner in ast.walk(node)}
    return read, any(isinstance(n, ast.Name) and n.id == name and id(n) not in covered for n in nodes)


def _length(counted: ast.expr, variables: Mapping[str, Any]) -> str:
    """Return source code for the length of the vector whose nonzero elements are looked up."""
    match counted:
        case ast.Call(ast.Attribute(ast.Name("torch"), "greater" | "gt" | "ne"), [of, _]):
            return _length(of, variables)
        case ast.Compare(of, comparators=[ast.Constant()]):
            return _length(of, variables)
        case ast.Call(ast.Attribute(ast.Name(of), "sum"), keywords=[ast.keyword("dim") as dims]):
            # The sum is over all dimensions except the first.
            ndim = getattr(variables.get(of), "ndim", 0)
            listed = sorted(map(int, re.findall(r"-?\d+", text_of(dims.value))))
            if ndim > 1 and listed == list(range(1 - ndim, 0)):
                return f"{of}.shape[0]"
    return f"{text_of(counted)}.shape[0]"


def _one_way(expression: ast.expr, span: Span | None, ending: str = "") -> Fix:
    """Return a fix with one assertion per value of a condition on a size, for non-empty sizes first."""
    ways = _ways(expression)
    listed = ", or ".join(f"`torch._check({way})`" for way in ways.values())
    statement = statement_at(span)
    changes = tuple(
        Change(
            edits=(Edit.before(span.path, statement, f"torch._check({way})"),),
            message=f"{_STATE}: `torch._check({way})`",
            answer=answer,
        )
        for answer, way in ways.items()
        if span is not None and statement is not None
    )
    return Fix(f"{_STATE}: {listed}{ending}", changes=changes)


_STATE = "before this line, assert what always holds"


def _ways(expression: ast.expr) -> dict[bool, str]:
    """Map each value of a condition to an expression which, if asserted, gives the condition this value."""
    match expression:
        case ast.UnaryOp(ast.Not(), operand):
            return {not answer: way for answer, way in _ways(operand).items()}
        case ast.Compare(size, [sign], [ast.Constant(0)]) if isinstance(sign, (ast.Eq, ast.NotEq)):
            is_empty = isinstance(sign, ast.Eq)
            return {not is_empty: _has_rows(size), is_empty: f"{text_of(size)} == 0"}
        case ast.Compare(ops=[ast.Eq()]):
            return {False: _opposite(expression), True: text_of(expression)}
        case ast.Compare() | ast.BoolOp():
            return {True: text_of(expression), False: _opposite(expression)}
        case _:  # A number; `torch._check` accepts only booleans.
            return {True: _has_rows(expression), False: f"{text_of(expression)} == 0"}


def _has_rows(size: ast.expr) -> str:
    """Return source code that tests whether a size is not 0: `> 0` if torch can infer a bound from it."""
    match size:
        case (
            ast.Call(ast.Attribute(attr="numel" | "size" | "__len__"))
            | ast.Call(ast.Name("len"))
            | ast.Subscript(ast.Attribute(attr="shape"))
        ):
            return f"{text_of(size)} > 0"
    return f"{text_of(size)} != 0"


def _opposite(expression: ast.expr) -> str:
    pairs: dict[type[ast.cmpop], ast.cmpop] = {
        ast.Eq: ast.NotEq(),
        ast.NotEq: ast.Eq(),
        ast.Gt: ast.LtE(),
        ast.GtE: ast.Lt(),
        ast.Lt: ast.GtE(),
        ast.LtE: ast.Gt(),
    }
    match expression:
        case ast.Compare(left, [sign], [right]) if type(sign) in pairs:
            return text_of(ast.Compare(left, [pairs[type(sign)]], [right]))
    return f"not ({text_of(expression)})"
