"""Loops over the rows of `nonzero()` that could as well run over every row of the mask that was counted.

`for e in mask.sum((-1, -2)).nonzero():`, as over the experts that have tokens: one without any adds nothing.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from fakexport.diagnostics.diagnostic import Span
from fakexport.diagnostics.selected_writes import SelectedLines, is_read_outside
from fakexport.diagnostics.statement import assignments, function_at, is_at, stored


@dataclass(frozen=True)
class VisitedRows:
    """A loop that adds nothing for a row of a mask in which nothing is set.

    Args:
        mask: The variable of the mask.
        dims: The dimensions over which it is counted. They have to be all but the first.
        is_one_hot: Whether no element of it can be negative, as in a boolean mask.
        written: Variables that are written to.
        called: What is called besides functions of torch: it must change no state.
    """

    mask: str
    dims: tuple[int, ...]
    is_one_hot: bool
    written: tuple[str, ...]
    called: tuple[str, ...]


def visited_rows(span: Span) -> VisitedRows | None:
    """Return what a loop runs over and writes; None where it does anything else."""
    function = function_at(span)
    loops = () if function is None else ast.walk(function)
    match [each for each in loops if isinstance(each, ast.For) and is_at(each.iter, span)]:
        case [ast.For(ast.Name(row), ast.Name(rows), body, []) as loop, *_] if function is not None:
            pass
        case _:
            return None
    made = assignments(rows, function, loop.lineno)
    counted = _counted(made[-1].value) if made else None
    if counted is None or _is_stored(counted[0], made[-1].lineno, function, loop):
        return None
    mask, dims = counted
    is_one_hot = _is_one_hot(mask, assignments(mask, function, made[-1].lineno))
    numbers = {row}
    found = SelectedLines(set(), set().union(*map(stored, body)) - {row}, mask, numbers)
    is_row = True
    for line in body:
        if is_row and not _reads_well(line, row, mask):
            return None
        match line:
            case ast.Assign([ast.Name(name)], value) if _is_number(value, row, is_row=is_row):
                numbers.add(name)
                found.assigned.add(name)
                is_row = is_row and name != row
            case ast.If(test, [ast.Continue()], []) if found.is_quiet(test):
                pass  # Such a row adds nothing with the other lines and without.
            case _ if not found.add(line):
                return None
    if not found.written or is_read_outside({*found.stored, row}, body, function):
        return None
    written, called = sorted(found.written - found.stored), sorted(found.called)
    return VisitedRows(mask, dims, is_one_hot, tuple(written), tuple(called))


def _is_one_hot(mask: str, made: list[ast.Assign]) -> bool:
    """Return whether a mask is made by `one_hot`, and only turned since."""
    texts = [ast.unparse(each.value) for each in made]
    own = re.compile(rf"{re.escape(mask)}\.(?:permute|transpose)\([-0-9, ]*\)")
    return bool(texts) and "one_hot(" in texts[0] and all(map(own.fullmatch, texts[1:]))


_SUM = r"(\w+)\.sum\((?:dim=)?([-0-9, ()\[\]]+)\)"
_COUNTS = (_SUM, rf"torch\.(?:greater|gt|ne)\({_SUM}, 0\)", rf"\(?{_SUM} (?:>|!=) 0\)?")
_CALLS = (r"torch\.nonzero\({}(?:, as_tuple=False)?\)", r"{}\.nonzero\((?:as_tuple=False)?\)")
_COUNTED = [re.compile(call.format(count)) for call in _CALLS for count in _COUNTS]


def _counted(value: ast.expr) -> tuple[str, tuple[int, ...]] | None:
    """Return the mask of which the nonzero sums are taken, and over which dimensions."""
    text = ast.unparse(value)
    match = next((match for form in _COUNTED if (match := form.fullmatch(text)) is not None), None)
    return None if match is None else (match[1], tuple(map(int, re.findall(r"-?[0-9]+", match[2]))))


def _is_stored(name: str, after: int, function: ast.FunctionDef, loop: ast.For) -> bool:
    """Return whether a variable may be assigned or changed from a line on to the end of a loop."""
    for node in ast.walk(function):
        line = getattr(node, "lineno", 0)
        if not after < line <= (loop.end_lineno or line):
            continue
        match node:
            case ast.Name(stored_name, ast.Store()) if stored_name == name:
                return True
            case ast.Subscript(ast.Name(stored_name), ctx=ast.Store()) if stored_name == name:
                return True
            case ast.Call(ast.Attribute(ast.Name(stored_name), attr)) if (
                stored_name == name and attr.endswith("_")
            ):
                return True
    return False


def _is_number(value: ast.expr, row: str, is_row: bool) -> bool:
    """Return whether a value is the number of a row: `row[0]`, `int(row.item())`."""
    match value:
        case ast.Call(ast.Name("int"), [inner]) | ast.Call(ast.Attribute(inner, "item"), []):
            return (isinstance(inner, ast.Name) and inner.id == row) or _is_number(inner, row, is_row)
        case ast.Subscript(ast.Name(name), ast.Constant(0)):
            return is_row and name == row
    return False


def _reads_well(line: ast.stmt, row: str, mask: str) -> bool:
    """Return whether a line reads a row as a list of one number can be read as well."""
    fit = set()
    for node in ast.walk(line):
        match node:
            case (
                ast.Subscript(ast.Name(name) as read, ast.Constant(0))
                | ast.Call(ast.Attribute(ast.Name(name) as read, "item"), [])
                | ast.Call(ast.Name("int"), [ast.Name(name) as read])
            ) if name == row:
                fit.add(id(read))
            case ast.Subscript(ast.Name(name), ast.Name() as read) if name == mask:
                fit.add(id(read))
    loads = (n for n in ast.walk(line) if isinstance(n, ast.Name) and n.id == row)
    return all(id(each) in fit for each in loads if isinstance(each.ctx, ast.Load))
