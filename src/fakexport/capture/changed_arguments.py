"""Lists, dicts and sets of the caller that `forward` changes: a program is given copies of them."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fakexport.diagnostics import Span, columns_of, function_at, written_places
from fakexport.program import is_user_code

from .containers import containers_in, has_items, items_of

# Name of an argument -> its containers, with what they hold.
Arguments = Mapping[str, list[tuple[Any, list[Any]]]]


def contents_of_arguments(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Arguments:
    """Return what the containers in the arguments of a call hold. Those of `*args` and `**kwargs` have the
    names that they are given by.
    """
    found: dict[str, list[tuple[Any, list[Any]]]] = {}
    for name, parameter in inspect.signature(forward).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        is_rest = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        given, args = (args, ()) if is_rest else (args[:1], args[1:])
        values = kwargs.get(name) if not given and not is_rest else given
        found[name] = [(each, items_of(each)) for each in containers_in(values)]
    rest = {name: value for name, value in kwargs.items() if name not in found}
    found |= {name: [(each, items_of(each)) for each in containers_in(value)] for name, value in rest.items()}
    return found


def changed_arguments(forward: Callable[..., Any], before: Arguments) -> Iterator[tuple[str, Span | None]]:
    """Yield the names of arguments that were changed, and where `forward` does it."""
    for name, held in before.items():
        if not all(has_items(container, items) for container, items in held):
            yield name, next(_places(forward, name), None)


def _places(forward: Callable[..., Any], name: str) -> Iterator[Span]:
    code = getattr(inspect.unwrap(forward), "__code__", None)
    if code is None or not is_user_code(path := code.co_filename):
        return
    function = function_at(Span(path, max(line for *_, line in code.co_lines() if line)))
    if function is None:
        return  # Typed at a prompt, or generated.
    for place in written_places(function):
        if isinstance(place, ast.Name) and place.id == name:
            columns = columns_of(place, linecache.getline(path, place.lineno))
            yield Span(path, place.lineno, *columns, function=function.name, origin="source")
