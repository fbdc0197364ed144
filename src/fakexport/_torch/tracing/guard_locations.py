"""Find the user code that caused a guard on sizes, and make torch report it. Seen on torch 2.11 to 2.13.

`name_user_frames` changes two results of a trace. First, torch omits frames in some of its own files from the
stack trace of a node. With this module, frames in fakexport's files are omitted, too, because some functions
of fakexport replace functions of torch. Second, torch reports the innermost frame outside of a few files as
the origin of a guard. For `reshape`, this is a frame of torch. With this module, it is a frame of user code.

Source: `torch/fx/experimental/symbolic_shapes.py:ShapeGuard`, `torch/_guards.py:SLoc`,
`torch/_export/non_strict_utils.py:make_fake_inputs`;
`torch/fx/experimental/symbolic_shapes.py:uninteresting_files, ShapeEnv._get_stack_summary`.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import sympy
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, _trace
from torch.fx.experimental.symbolic_shapes import ShapeEnv, uninteresting_files

from fakexport._torch.patching import Patches, in_force

Place = tuple[str, int, str | None]

_PLACE = re.compile(r"(?P<path>[^\s()][^()\n]*?):(?P<line>\d+)(?: in (?P<function>[^\s)]+))?")
_SIZE = re.compile(r"L\['(?P<name>\w+)'\]\.size\(\)\[(?P<dim>\d+)\]")


@dataclass(frozen=True)
class Guard:
    """A guard on sizes."""

    expression: str  # For example `Eq(8*s77, 32)`.
    places: tuple[Place, ...]  # `(path, line, function)` of each frame of user code, outermost first.
    dims: tuple[str, ...]  # The input dimensions in the expression, such as `x.0`.
    is_equality: bool  # Whether the guard requires two of these dimensions to be equal.
    _condition: Any = field(repr=False, compare=False)
    _symbols: tuple[Any, ...] = field(repr=False, compare=False)

    def first_refused(self, sizes: Iterable[int]) -> int | None:
        """Return the first of these sizes that the guard rejects, or None if it accepts all of them.

        For a guard on several dimensions, return None.
        """
        if len(self._symbols) != 1:
            return None
        symbol = self._symbols[0]
        return next((n for n in sizes if self._refuses({symbol: n})), None)

    def _refuses(self, values: Mapping[Any, int]) -> bool:
        """Return whether the guard rejects sizes, or cannot be computed for them, as in `s0 % (s0 // 4)`."""
        try:
            condition = self._condition.xreplace({symbol: sympy.Integer(n) for symbol, n in values.items()})
        except ZeroDivisionError:
            return True
        return bool(condition == False)  # noqa: E712

    @property
    def order(self) -> str | None:
        """The order of two dimensions that the guard requires, such as `x.1 > y.1`; None for other guards."""
        is_plain = isinstance(self._condition, (sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)) and all(
            side.is_Symbol for side in self._condition.args
        )
        if not is_plain or len(self.dims) != len(self._symbols):
            return None
        names = {str(symbol): name for symbol, name in zip(self._symbols, self.dims, strict=True)}
        left, sign, right = self.expression.split()
        return f"{names[left]} {sign} {names[right]}"

    def first_refused_by_all(self, sizes: Iterable[int]) -> int | None:
        """Return the first of these sizes that the guard rejects if all its dimensions have it, or None."""
        for n in sizes:
            if self._refuses(dict.fromkeys(self._symbols, n)):
                return n
        return None

    def first_refused_pair(self, first: Iterable[int], second: Sequence[int]) -> tuple[int, int] | None:
        """Return the first pair of these sizes that a guard on two dimensions rejects, or None.

        For a guard on a different number of dimensions, return None.
        """
        if len(self._symbols) != 2 or len(self.dims) != 2:
            return None
        one, other = self._symbols
        for n in first:
            for m in second:
                if self._refuses({one: n, other: m}):
                    return n, m
        return None


def guards_of_error(error: BaseException) -> list[Guard]:
    """Return the guards of the shape environment that an export used before it raised an error.

    An export creates its own fake mode and only stores it in local variables. Therefore, this function looks
    for the mode in the frames of the traceback.

    Returns:
        The guards in the order in which they were added. There are none if no size was symbolic.
    """
    seen: dict[int, ShapeEnv] = {}
    for environment in _environments(error):
        seen.setdefault(id(environment), environment)
    return [guard for environment in seen.values() for guard in _guards(environment)]


def guards_of_program(program: ExportedProgram) -> list[Guard]:
    """Return the guards of the shape environment that a program was captured with.

    For a program that was loaded from a file, return no guards.
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
    """Return the locations in an `SLoc`, which stores frames, and stack traces of user code as text."""
    found: list[Place] = []
    for place in (sloc.framework_loc, sloc.maybe_user_loc):
        if isinstance(place, traceback.FrameSummary):
            found.append((place.filename, place.lineno or 1, place.name))
        elif place:
            found += [(m["path"], int(m["line"]), m["function"]) for m in _PLACE.finditer(str(place))]
    return found


@contextmanager
def name_user_frames(is_user_code: Callable[[str], bool]) -> Iterator[None]:
    """Enter a context in which torch reports the innermost frame of user code as the origin of a guard."""
    files = uninteresting_files()  # torch caches the result, so this is the set object that torch uses.
    added = _own_files() - files
    files |= added
    try:
        with Patches({(ShapeEnv, "_get_stack_summary"): _innermost(cache(is_user_code))}):
            yield
    finally:
        files -= added


@cache
def _own_files() -> frozenset[str]:
    return frozenset(str(path) for path in Path(__file__).parents[2].rglob("*.py"))


def _innermost(is_user_code: Callable[[str], bool]) -> Callable[..., Any]:
    stock = in_force(ShapeEnv, "_get_stack_summary")

    # `_get_user_frame` is not patched, because torch also uses it to check for an `assert`, which affects the
    # trace.
    def stack_summary(environment: ShapeEnv, is_debug: bool = False, framework_loc: Any = None) -> Any:
        frame: FrameType | None = sys._getframe(1)
        # `_trace` calls the model, so frames outside of it belong to the caller of the export.
        while framework_loc is None and frame is not None and frame.f_code.co_filename != _trace.__file__:
            if is_user_code(frame.f_code.co_filename):
                code = frame.f_code
                framework_loc = traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name)
            frame = frame.f_back
        return stock(environment, is_debug, framework_loc=framework_loc)

    return stack_summary
