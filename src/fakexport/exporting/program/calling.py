"""Convert arguments that `forward` accepts to the form that the exported program accepts.

A program accepts arguments only in the form of its example inputs, in the same containers. `forward` also
accepts arguments by position instead of by name, in named tuples and in dataclasses, and arguments with
defaults can be left out.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram

from fakexport.error import InvalidType
from fakexport.files.documents import Parameter, ParameterKind, Scalar

_KINDS: Mapping[Any, ParameterKind] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "any",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_POSITIONAL: "args",
    inspect.Parameter.VAR_KEYWORD: "kwargs",
}


def parameters_of(
    forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Parameter, ...]:
    """Return the parameters of `forward`. Empty if `forward` accepts only the form of the example inputs."""
    found = inspect.signature(forward).parameters.values()
    if not kwargs and len(found) == len(args) and all(each.default is each.empty for each in found):
        return ()
    return tuple(Parameter(each.name, _KINDS[each.kind], _defaults(each)) for each in found)


def _defaults(parameter: inspect.Parameter) -> tuple[Scalar, ...]:
    default = parameter.default
    is_finite = not isinstance(default, float) or math.isfinite(default)
    return (default,) if default is None or (type(default) in (bool, int, float, str) and is_finite) else ()


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a named tuple or a dataclass by name, or None for other objects."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: getattr(value, name) for name in value._fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, Mapping)):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return None


@dataclass(frozen=True)
class Calling:
    """The ways in which a program can be called.

    Args:
        parameters: The parameters of `forward`, or empty if they are unknown.
        structure: The structure of the arguments that the program was exported with.
    """

    parameters: tuple[Parameter, ...]
    structure: Any

    @property
    def is_plain(self) -> bool:
        """Whether torch checks a call completely. It does not check the order of keys."""
        positional, keywords = self.structure.children()
        parts = (*positional.children(), *keywords.children())
        return len(self._rest(keywords.context)) < 2 and not any(map(_has_keys, parts))

    def canonical(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert the arguments of a call to the form that the program was exported with.

        Arguments that do not match `forward` are returned unchanged, so that torch raises its own error.

        Raises:
            TypeError: an argument is missing, was not part of the export, or has its keys in a different
                order.
        """
        positional, keywords = self.structure.children()
        count, names = positional.num_children, list(keywords.context)
        rest = self._rest(names)
        order = [name for name in kwargs if name in rest]
        if len(order) == len(rest) and order != rest:
            raise InvalidType(
                f"the arguments are in the order {', '.join(order)}, but the program was exported "
                f"with {', '.join(rest)}: `forward` may depend on the order of `**kwargs`"
            )
        if len(args) != count or kwargs.keys() != set(names):
            args, kwargs = self._bound(args, kwargs, count, names)
        if len(args) != count or kwargs.keys() != set(names):
            return args, dict(kwargs)
        made = [
            _plain(each, part, f"argument {at}")
            for at, (each, part) in enumerate(zip(args, positional.children(), strict=True))
        ]
        parts = zip(names, keywords.children(), strict=True)
        return tuple(made), {name: _plain(kwargs[name], part, name) for name, part in parts}

    def _rest(self, names: Sequence[str]) -> list[str]:
        """Return those names that `forward` receives in `**kwargs`."""
        own = {each.name for each in self.parameters if each.kind in ("any", "keyword")}
        has_rest = any(each.kind == "kwargs" for each in self.parameters)
        return [name for name in names if name not in own] if has_rest else []

    def _bound(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], count: int, names: Sequence[str]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        known = {each.name: each for each in self.parameters}
        places = [each.name for each in self.parameters if each.kind in ("positional", "any")]
        if not known or any(each.kind == "args" for each in self.parameters) or len(args) > len(places):
            return args, kwargs
        given = dict(zip(places, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise InvalidType(f"got multiple values for the argument {min(twice)!r}")
        given |= kwargs
        wanted = [*places[:count], *names]
        for name in wanted:
            if name not in given:
                given[name] = _default(known.get(name), name)
        for name in given.keys() - set(wanted):
            if name not in known:
                raise InvalidType(f"got an unexpected argument {name!r}")
            if not _is_default(given[name], known[name]):
                raise InvalidType(
                    f"the program was exported with the default value of the argument {name!r}, and accepts "
                    "no other value"
                )
        return tuple(given[name] for name in places[:count]), {name: given[name] for name in names}


def _default(parameter: Parameter | None, name: str) -> Scalar:
    if parameter is None or not parameter.defaults:
        raise InvalidType(f"the argument {name!r} is missing")
    return parameter.defaults[0]


def _is_default(value: Any, parameter: Parameter) -> bool:
    return any(
        type(value) is type(default) and repr(value) == repr(default) for default in parameter.defaults
    )


def _has_keys(structure: Any) -> bool:
    is_ordered = structure.type is dict and structure.num_children > 1
    return is_ordered or any(map(_has_keys, structure.children()))


def _plain(value: Any, structure: Any, name: str) -> Any:
    """Convert a value to the containers that the program was exported with."""
    if structure.is_leaf():
        return value
    keys = list(structure.context) if structure.type is dict else None
    if keys is not None and (fields := fields_of(value)) is not None and list(fields) == keys:
        value = fields
    if keys is not None and type(value) is dict and value.keys() == set(keys):
        if list(value) != keys:
            raise InvalidType(
                f"the keys of {name} are in the order {', '.join(map(str, value))}, but the "
                f"program was exported with {', '.join(map(str, keys))}: `forward` may depend on "
                "their order"
            )
        parts = zip(keys, structure.children(), strict=True)
        return {key: _plain(value[key], part, f"{name}[{key!r}]") for key, part in parts}
    if (
        type(value) is structure.type
        and type(value) in (tuple, list)
        and len(value) == structure.num_children
    ):
        items = zip(value, structure.children(), strict=True)
        made = [_plain(item, part, f"{name}[{at}]") for at, (item, part) in enumerate(items)]
        return structure.type(made)
    return value


FACTS = "_fakexport_facts"
"""Name of the attribute of a program that holds its `ProgramFacts`."""


class CheckedProgram(ExportedProgram):
    """A program whose inputs include several `**kwargs`, or dicts with several keys.

    torch accepts keys in any order, but `forward` may iterate over them, so this class checks the order.
    Otherwise, it behaves like `ExportedProgram`. A finished program is converted by replacing its class, as
    with `WeightlessProgram`.
    """

    def module(self, check_guards: bool = True) -> Any:
        """Return the module. If it checks guards, it also rejects keys in a different order."""
        made = super().module(check_guards=check_guards)
        facts = vars(self).get(FACTS)
        calling = Calling(() if facts is None else facts.parameters, self.call_spec.in_spec)
        if check_guards and not calling.is_plain:
            made.register_forward_pre_hook(
                lambda _, args, kwargs: calling.canonical(args, kwargs), with_kwargs=True, prepend=True
            )
        return made
