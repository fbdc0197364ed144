"""The input sizes of a program as expressions, and the proof that a program accepts a range of sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fakexport._torch.tracing.symbolic_numbers import (
    expression_of,
    finite_bound,
    hint_of,
    size_value,
    symbols_of,
)
from fakexport.error import InvalidValue
from fakexport.exporting.interface import Condition, Operation, Question
from fakexport.files.documents import SizeRange

from .guards_of_program import conditions_of, leaves_of, linear_size

_MOST_SIZES = 2**20
"""Most sizes for which a condition is computed one by one. Longer ranges need a simple condition."""

Shape = tuple[Any, ...]


@dataclass(frozen=True)
class InputSizes:
    """The input shapes of a program.

    Args:
        shapes: Shape of each leaf of the inputs: integers, and expressions for dynamic sizes. None for a leaf
            that is not a tensor.
        names: Name of each leaf in the program.
        places: Index of each leaf, by the name of the argument or the name in the program.
        values: Symbol -> its value for the example inputs.
    """

    shapes: tuple[Shape | None, ...]
    names: tuple[str, ...]
    places: Mapping[str, int]
    values: Mapping[str, int]

    @classmethod
    def of(cls, program: ExportedProgram) -> InputSizes:
        nodes = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
        shapes: list[Shape | None] = []
        places: dict[str, int] = {}
        values: dict[str, int] = {}
        leaves = leaves_of(program)
        for index, leaf in enumerate(leaves):
            value = nodes.get(leaf.name)
            if not isinstance(value, torch.Tensor):
                shapes.append(None)
                continue
            sizes: list[Any] = []
            for size in value.shape:
                if isinstance(size, torch.SymInt):
                    sizes.append(expression_of(size))
                    if sizes[-1].is_Symbol:
                        values[sizes[-1].name] = hint_of(size)
                else:
                    sizes.append(size)
            shapes.append(tuple(sizes))
            places[str(leaf.path[0]) if leaf.path and len(leaf.path) == 1 else leaf.name] = index
        for index, leaf in enumerate(leaves):
            places.setdefault(leaf.name, index)
        return cls(tuple(shapes), tuple(leaf.name for leaf in leaves), places, values)

    def freed(self, dims: Iterable[SizeRange]) -> InputSizes:
        """Return the sizes of a static program, with a symbol for each size that can be a divided one.

        These are the sizes with the value of a divided dimension. The trace of a static program does not show
        which sizes depend on each other.
        """
        divided = {self.size(place) for dim in dims for place in (dim.place, *dim.same)}
        values = dict(self.values)

        def free(size: Any) -> Any:
            if not isinstance(size, int) or size not in divided:
                return size
            symbol = sympy.Symbol(f"size{len(values)}", integer=True)
            values[symbol.name] = size
            return symbol

        shapes = tuple(None if shape is None else tuple(map(free, shape)) for shape in self.shapes)
        return replace(self, shapes=shapes, values=values)

    def named(self, dims: Iterable[SizeRange]) -> tuple[SizeRange, ...]:
        """Return the ranges as archives store them, with the names that the inputs have in the program."""
        return tuple(replace(dim, input=self.names[self.places[dim.input]], same=()) for dim in dims)

    def size(self, place: str) -> Any:
        """Return the size of a dimension, such as `input_ids.1`: an integer or an expression."""
        name, _, dim = place.rpartition(".")
        shape = self.shapes[self.places[name]]
        assert shape is not None
        return shape[int(dim)]

    def together(self, dim: SizeRange, dims: Sequence[SizeRange]) -> list[Any]:
        """Return the expressions of all sizes that change together with a dimension; empty if it is static.

        These are the sizes with the same name. If the dimension has no name, they are the sizes with the same
        value for the example inputs, except in the same tensor: a model rarely requires that a mask has as
        many rows as the tokens, but every caller passes it like this. In a tensor with several such sizes, it
        is only the one in the same dimension.

        Args:
            dims: All dimensions whose sizes are divided.
        """
        own = self.size(dim.place)
        if isinstance(own, int):
            return []
        if dim.same or not own.is_Symbol:
            return [own, *(size for place in dim.same if not isinstance(size := self.size(place), int))]
        value = self.values[own.name]
        of_others = [self.size(each.place) for each in dims if each is not dim]
        taken = frozenset().union(
            *map(symbols_of, (*of_others, *(self.shapes[self.places[dim.input]] or ())))
        )

        def is_equal(size: Any) -> bool:
            is_free = not isinstance(size, int) and size.is_Symbol and size not in taken
            return is_free and self.values[size.name] == value > 1

        equal = [own]
        for shape in self.shapes:
            found = [size for size in shape or () if is_equal(size)]
            at_same_place = [size for size in (shape or ())[dim.dim : dim.dim + 1] if size in found]
            equal += at_same_place or found
        return list(dict.fromkeys(equal))

    def examples(self, dims: Sequence[SizeRange]) -> tuple[tuple[int, ...] | None, ...]:
        """Return the shapes of example inputs in which each of these dimensions has one of its sizes.

        All other sizes that depend on them change, too. The rest have the sizes of the example inputs.

        Raises:
            ValueError: no size is possible, or two dimensions are always equal, but have different ranges.
        """
        values = dict(self.values)
        chosen: dict[str, SizeRange] = {}
        for dim in dims:
            own = self.size(dim.place)
            if isinstance(own, int):
                if own not in dim:
                    raise InvalidValue(f"--dynamic {dim}: the model requires that {dim.place} is {own}")
                continue
            size = self._possible(own, dim)
            for expression in self.together(dim, dims):
                if (linear := linear_size(expression)) is None or (size - linear[2]) % linear[1]:
                    raise InvalidValue(
                        f"--dynamic {dim}: the model requires a size of the form {expression}, not {size}"
                    )
                symbol, times, plus = linear
                value = (size - plus) // times
                other = chosen.setdefault(symbol, dim)
                if values.get(symbol) != value and other is not dim:
                    raise InvalidValue(
                        f"--dynamic: {other.place} and {dim.place} always change together: give them one "
                        f"name, as in {other.place}=size={other.bounds} and {dim.place}=size"
                    )
                values[symbol] = value
        return tuple(
            None if shape is None else tuple(size_value(size, values) for size in shape)
            for shape in self.shapes
        )

    def _possible(self, expression: Any, dim: SizeRange) -> int:
        """Return a size in the range that has the form of the expression: the example's if possible."""
        linear = linear_size(expression)
        if linear is None:
            return dim.min
        symbol, times, plus = linear
        value = max(self.values.get(symbol, 0), -(-(dim.min - plus) // times))
        if dim.max is not None:
            value = min(value, (dim.max - plus) // times)
        return value * times + plus


def refused_size(program: ExportedProgram, dims: Sequence[SizeRange]) -> str | None:
    """Return why a program does not accept all sizes in these ranges, or None if it does.

    Every size in the ranges is tried with each condition on the inputs. Conditions that also depend on other
    sizes are not a matter of these dimensions, and are skipped.

    Raises:
        UnreadableCondition: a condition cannot be computed.
    """
    sizes = InputSizes.of(program)
    ranges: dict[str, SizeRange] = {}
    for dim in dims:
        size = sizes.size(dim.place)
        if isinstance(size, int) and (dim.min, dim.max) != (size, size):
            return f"{dim.place} is always {size}"
        for expression in sizes.together(dim, dims):
            if not expression.is_Symbol:
                return f"a size must have the form {expression}"
            ranges[expression.name] = dim
    for symbol, known in program.range_constraints.items():
        if (own := ranges.get(symbol.name)) is not None:
            least, most = finite_bound(known.lower), finite_bound(known.upper)
            if least is not None and own.min < least:
                return f"{own.place} must be at least {least}"
            if most is not None and (own.max is None or own.max > most):
                return f"{own.place} must be at most {most}"
    shapes = dict(zip(sizes.names, sizes.shapes, strict=True))
    for condition in conditions_of(program):
        if (refused := _refused_by(condition, shapes, ranges)) is not None:
            return refused
    return None


def _refused_by(
    condition: Condition,
    shapes: Mapping[str, Shape | None],
    ranges: Mapping[str, SizeRange],
) -> str | None:
    asked: dict[Question, Any] = {}
    for question in condition.questions:
        shape = shapes.get(question.input)
        asked[question] = shape[question.dim] if question.kind == "size" and shape is not None else None
    symbols = sorted({symbol.name for size in asked.values() for symbol in symbols_of(size)})
    if not symbols or not set(symbols) <= ranges.keys() or None in asked.values():
        return None
    own = list(dict.fromkeys(ranges[symbol] for symbol in symbols))
    tried: Iterable[tuple[int, ...]]
    if math.prod(math.inf if each.max is None else each.max - each.min + 1 for each in own) <= _MOST_SIZES:
        tried = itertools.product(*(range(each.min, (each.max or 0) + 1) for each in own))
    elif (decisive := _decisive_sizes(condition, own)) is not None:
        tried = decisive
    else:
        return f"{own[0].place} has too many sizes for a proof that they all have {condition}"
    for chosen in tried:
        size_of = dict(zip(own, chosen, strict=True))
        values = {symbol: size_of[ranges[symbol]] for symbol in symbols}
        if not condition.holds(lambda question: size_value(asked[question], values)):  # noqa: B023
            refused = " and ".join(f"{each.place}={size}" for each, size in zip(own, chosen, strict=True))
            return f"{refused} is not accepted, because of {condition.reason}"
    return None


def _decisive_sizes(condition: Condition, ranges: Sequence[SizeRange]) -> list[tuple[int, ...]] | None:
    """Return sizes that decide for a whole range whether it satisfies a comparison of one size with a number.

    Return None for any other condition.
    """
    match condition.check:
        case Operation("<" | "<=" | ">" | ">=" | "==" | "!=", (Question(), int(number))) if len(ranges) == 1:
            (own,) = ranges
            tried = (own.min, number - 1, number, number + 1, max(own.min, number) + 2, own.max or own.min)
            return [(size,) for size in tried if size in own]
    return None
