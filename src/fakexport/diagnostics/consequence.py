"""What hangs on a condition, as its source says: with one answer an error, or nothing that counts."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence

from fakexport.diagnostics.diagnostic import Span
from fakexport.diagnostics.statement import condition_at, is_at, tries_around

__all__ = ["answer_that_goes_on", "is_caught", "mask_of_writes"]

# What makes a value of another dtype, device or shape, and nothing else.
_CONVERSIONS = frozenset({
    "bfloat16", "contiguous", "detach", "double", "expand", "expand_as", "flatten", "float", "half",
    "reshape", "squeeze", "to", "type_as", "unsqueeze", "view",
})  # fmt: skip
# What Python itself catches: at the end of a loop, in `getattr` with a default, in an iteration by index.
_SIGNALS = (StopIteration, StopAsyncIteration, GeneratorExit, AttributeError, LookupError)
_PLAIN = (
    ast.Name,
    ast.Constant,
    ast.Attribute,
    ast.Subscript,
    ast.Slice,
    ast.Tuple,
    ast.UnaryOp,
    ast.BinOp,
    ast.keyword,
    ast.unaryop,
    ast.operator,
    ast.expr_context,
)


def answer_that_goes_on(span: Span) -> tuple[bool, str] | None:
    """Return the answer of a condition with which `forward` goes on, where it raises with the other one.

    Args:
        span: The place of the condition, or of an operand of it. It has to decide alone: in the test of an
            `if` that raises, any operand of `or` and the last of `and`.
    Returns:
        The answer, and the name of what is raised ("" where it is not written there). None where something
        else depends on the condition.
    """
    node = condition_at(span) if span.end_column is not None else None
    match node:
        case ast.Assert():
            goes_on, raised = True, "AssertionError"
        case ast.If(body=body) if (error := _only_raises(body)) is not None:
            goes_on, raised = False, error
        case ast.If(orelse=[_, *_] as body) if (error := _only_raises(body)) is not None:
            goes_on, raised = True, error
        case _:
            return None
    answer = _answer_of_part(node.test, span, goes_on)
    return None if answer is None else (answer, raised)


def is_caught(raised: str, places: Iterable[Span]) -> bool:
    """Return whether an error may be caught: by one of the running functions, or as a signal by Python.

    Args:
        raised: The name of the error, or "".
        places: Where the functions are, each with its file and line.
    """
    error = _error_type(raised)
    if error is not None and issubclass(error, _SIGNALS):
        return True
    return any(_catches(node, error) for place in places for node in tries_around(place))


def mask_of_writes(span: Span) -> tuple[str, tuple[str, ...]] | None:
    """Return the mask of which a condition asks whether it is empty, and what is written where it is set.

    Both by the names of their variables. What follows are lines `X[MASK] = VALUE` and
    `X.masked_fill_(MASK, VALUE)`, which change nothing where a boolean mask is empty. That it is boolean, the
    source does not tell.

    Args:
        span: The place of the whole condition.
    """
    node = condition_at(span)
    if not isinstance(node, ast.If) or node.orelse or not is_at(node.test, span):
        return None
    mask = _asked_mask(node.test)
    if mask is None:
        return None
    written = [_written(line, mask) for line in node.body]
    names = tuple(name for name in written if name is not None and name != mask)
    return (mask, names) if len(names) == len(written) else None


def _answer_of_part(test: ast.expr, span: Span, answer: bool) -> bool | None:
    """Return the only answer of a part with which a whole condition has an answer.

    Python asks the operands of `and` and `or` in turn: the last one decides alone when it is asked. Of
    `0 < n < m`, the place does not tell which of the two was asked.
    """
    match test:
        case ast.BoolOp(op=op, values=values):
            deciding = values if isinstance(op, ast.And) == answer else values[-1:]
            found = (_answer_of_part(value, span, answer) for value in deciding)
            return next((each for each in found if each is not None), None)
        case ast.Compare(ops=[_, _, *_]) if not answer:
            return None
        case _ if is_at(test, span):
            return answer
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _answer_of_part(operand, span, not answer)
    return None


def _only_raises(body: Sequence[ast.stmt]) -> str | None:
    """Return the name of what a block raises, or "" if it is not written there; None if it may do more.

    What it computes before goes into the text of the error.
    """
    *before, last = body
    if not isinstance(last, ast.Raise) or not all(
        isinstance(line, (ast.Assign, ast.AnnAssign)) for line in before
    ):
        return None
    match last.exc:
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def _error_type(name: str) -> type[BaseException] | None:
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _catches(node: ast.Try | ast.With, raised: type[BaseException] | None) -> bool:
    """Return whether a statement may go on after an error; True where the types are not known."""
    if isinstance(node, ast.With):
        return any("suppress" in ast.unparse(item.context_expr) for item in node.items)
    caught = (each.type for each in node.handlers if not isinstance(each.body[-1], ast.Raise))
    return any(_is_for(each, raised) for each in caught)


def _is_for(written: ast.expr | None, raised: type[BaseException] | None) -> bool:
    if isinstance(written, ast.Tuple):
        return any(_is_for(each, raised) for each in written.elts)
    caught = _error_type(written.id) if isinstance(written, ast.Name) else None
    return written is None or caught is None or raised is None or issubclass(raised, caught)


def _asked_mask(test: ast.expr) -> str | None:
    match test:
        case ast.Call(func=ast.Attribute(value=asked, attr="item"), args=[], keywords=[]):
            return _asked_mask(asked)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=mask), attr="any"), args=[], keywords=[]):
            return mask
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="torch"), attr="any"), args=[ast.Name(id=mask)], keywords=[]
        ):
            return mask
    return None


def _written(line: ast.stmt, mask: str) -> str | None:
    """Return the variable that a line writes to where a mask is set, if it does nothing else."""
    match line:
        case ast.Assign(targets=[ast.Subscript(value=written, slice=ast.Name(id=index))], value=value) if (
            index == mask and _is_plain(value)
        ):
            return _root(written)
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=written, attr="masked_fill_"),
                args=[ast.Name(id=index), value],
                keywords=[],
            )
        ) if index == mask and _is_plain(value):
            return _root(written)
    return None


def _root(written: ast.expr) -> str | None:
    """Return the variable that is written to, by itself or through a view of it."""
    while isinstance(written, ast.Subscript) and _is_plain(written.slice):
        written = written.value
    return written.id if isinstance(written, ast.Name) else None


def _is_plain(value: ast.expr) -> bool:
    """Return whether computing a value changes nothing, and raises nothing that depends on data."""
    return all(
        _is_conversion(node.func) if isinstance(node, ast.Call) else isinstance(node, _PLAIN)
        for node in ast.walk(value)
    )


def _is_conversion(called: ast.expr) -> bool:
    match called:
        case ast.Name(id="float" | "int"):
            return True
        case ast.Attribute(value=ast.Name(id="torch"), attr="finfo" | "iinfo"):
            return True
        case ast.Attribute(attr=name):
            return name in _CONVERSIONS
    return False
