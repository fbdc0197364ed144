"""Conditions with one answer to which `forward` does nothing but raise, as their source says."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence

from fakexport.diagnostics.diagnostic import Span
from fakexport.diagnostics.statement import condition_at, is_at, tries_around

# What Python itself catches: at the end of a loop, in `getattr` with a default, in an iteration by index.
_SIGNALS = (StopIteration, StopAsyncIteration, GeneratorExit, AttributeError, LookupError)


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


def _answer_of_part(test: ast.expr, span: Span, answer: bool) -> bool | None:
    """Return the only answer of a part with which a whole condition has an answer.

    Python asks the operands of `and` and `or` in turn: the last one decides alone when it is asked. Of
    `0 < n < m`, the place does not tell which of the two was asked.
    """
    match test:
        case ast.BoolOp(op, values):
            deciding = values if isinstance(op, ast.And) == answer else values[-1:]
            found = (_answer_of_part(value, span, answer) for value in deciding)
            return next((each for each in found if each is not None), None)
        case ast.Compare(ops=[_, _, *_]) if not answer:
            return None
        case _ if is_at(test, span):
            return answer
        case ast.UnaryOp(ast.Not(), operand):
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
        case ast.Name(name) | ast.Call(ast.Name(name)):
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
