"""Options that several commands share, as one parameter of each: a dataclass whose fields are the options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer that has the fields of each dataclass among the parameters as options."""
    signature = inspect.signature(command, eval_str=True)
    groups = {
        name: each.annotation
        for name, each in signature.parameters.items()
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }

    @functools.wraps(command)
    def flat(**given: Any) -> None:
        made = {
            name: group(**{each.name: _given(given.pop(each.name)) for each in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    def options() -> Iterator[inspect.Parameter]:
        for parameter in signature.parameters.values():
            if (group := groups.get(parameter.name)) is None:
                yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
                continue
            annotations = get_type_hints(group, include_extras=True)
            own = inspect.get_annotations(group)  # Before those of its base.
            for each in sorted(fields(group), key=lambda each: each.name not in own):
                yield inspect.Parameter(
                    each.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=each.default,
                    annotation=annotations[each.name],
                )

    vars(flat)["__signature__"] = signature.replace(parameters=list(options()))
    return flat


def _given(value: Any) -> Any:
    """Return None for an option that may be repeated and is not given."""
    return None if value == [] else value
