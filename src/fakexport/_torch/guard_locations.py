"""Where in the user's code a condition on sizes came from. Seen on torch 2.11 to 2.13.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeGuard`, `torch/_guards.py:SLoc`,
`torch/_export/non_strict_utils.py:make_fake_inputs`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

Place = tuple[str, int, str | None]

_PLACE = re.compile(r"(?P<path>[^\s()][^()\n]*?):(?P<line>\d+)(?: in (?P<function>[^\s)]+))?")
_SIZE = re.compile(r"L\['(?P<name>\w+)'\]\.size\(\)\[(?P<dim>\d+)\]")


@dataclass(frozen=True)
class Guard:
    """A condition on sizes.

    Args:
        expression: `Eq(8*s77, 32)`.
        places: `(path, line, function)`, outermost first.
        dims: The dimensions of inputs that it is about: `x.0`.
        is_equality: It says that two of them are equal.
    """

    expression: str
    places: tuple[Place, ...]
    dims: tuple[str, ...]
    is_equality: bool
    _condition: Any = field(repr=False, compare=False)
    _symbols: tuple[Any, ...] = field(repr=False, compare=False)

    def first_refused(self, sizes: Iterable[int]) -> int | None:
        """Return the first of the sizes that the guard does not allow.

        None for a guard on several dimensions.
        """
        if len(self._symbols) != 1:
            return None
        symbol = self._symbols[0]
        return next((n for n in sizes if self._condition.xreplace({symbol: sympy.Integer(n)}) == False), None)  # noqa: E712

    @property
    def order(self) -> str | None:
        """Which of two dimensions is greater: `x.1 > y.1`; None if it says another thing."""
        is_plain = isinstance(self._condition, (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)) and all(
            side.is_Symbol for side in self._condition.args
        )
        if not is_plain or len(self.dims) != len(self._symbols):
            return None
        names = {str(symbol): name for symbol, name in zip(self._symbols, self.dims, strict=True)}
        left, sign, right = self.expression.split()
        return f"{names[left]} {sign} {names[right]}"

    def first_refused_pair(self, first: Iterable[int], second: Sequence[int]) -> tuple[int, int] | None:
        """Return the first two sizes that the guard does not allow for its two dimensions.

        None for a guard on another number of dimensions.
        """
        if len(self._symbols) != 2 or len(self.dims) != 2:
            return None
        one, other = self._symbols
        for n in first:
            for m in second:
                if self._condition.xreplace({one: sympy.Integer(n), other: sympy.Integer(m)}) == False:  # noqa: E712
                    return n, m
        return None


def guards_of_error(error: BaseException) -> list[Guard]:
    """Return the guards of the shape environment that an export used before it raised.

    Export makes a fake mode of its own and keeps it in local variables, so the way to it after a failure
    is through the frames of the traceback.

    Returns:
        The guards in the order they arose. Empty where nothing was symbolic.
    """
    seen: dict[int, ShapeEnv] = {}
    for environment in _environments(error):
        seen.setdefault(id(environment), environment)
    return [guard for environment in seen.values() for guard in _guards(environment)]


def guards_of_program(program: ExportedProgram) -> list[Guard]:
    """Return the guards of the shape environment that a program was captured with.

    None of one that was loaded.
    """
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None:
            return [] if mode.shape_env is None else list(_guards(mode.shape_env))
    return []


def _guards(environment: ShapeEnv) -> Iterator[Guard]:
    names: dict[Any, list[str]] = {}
    for source, symbol in environment.source_to_var.items():
        if match := _SIZE.fullmatch(source):
            names.setdefault(symbol, []).append(f"{match['name']}.{match['dim']}")
    for guard in environment.guards:
        symbols = sorted(guard.expr.free_symbols, key=str)
        dims = tuple(name for symbol in symbols for name in names.get(symbol, ()))
        is_equality = isinstance(guard.expr, sympy.Eq) and all(side.is_Symbol for side in guard.expr.args)
        yield Guard(
            str(guard.expr), tuple(_places(guard.sloc)), dims, is_equality, guard.expr, tuple(symbols)
        )


def _environments(error: BaseException) -> Iterator[ShapeEnv]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, FakeTensorMode):
                value = value.shape_env
            if isinstance(value, ShapeEnv):
                yield value


def _places(sloc: Any) -> list[Place]:
    """Torch keeps a frame, or a text made of one; the user's place is a text."""
    found: list[Place] = []
    for place in (sloc.framework_loc, sloc.maybe_user_loc):
        if isinstance(place, traceback.FrameSummary):
            found.append((place.filename, place.lineno or 1, place.name))
        elif place:
            found += [(m["path"], int(m["line"]), m["function"]) for m in _PLACE.finditer(str(place))]
    return found
