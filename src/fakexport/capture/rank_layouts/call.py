"""One node of a rank's program, with the layouts of what it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from fakexport._torch.symbolic_numbers import hint_of

from .counterparts import named_arguments, number_of, results_of
from .layout import Common, Cut, Fault, Layout, Part

Results = Layout | list[Layout]
"""The layout of a tensor, or that of each tensor of a list."""


@dataclass(frozen=True)
class Operand:
    """A tensor that a node is given.

    Args:
        node: What made it.
        layout: Of it.
        sizes: On the rank; symbolic ones at the example, 0 where there is none.
        repeated: Dimensions along which it is one slice repeated (`expand`).
    """

    node: Node
    layout: Layout
    sizes: tuple[int, ...]
    repeated: frozenset[int]

    @classmethod
    def of(cls, node: Node, layout: Layout) -> Operand:
        value = node.meta.get("val")
        assert isinstance(value, torch.Tensor)
        strides = value.stride() if value.layout is torch.strided else ()
        zero = frozenset(d for d, stride in enumerate(strides) if isinstance(stride, int) and stride == 0)
        return cls(node, layout, sizes_of(value), zero)

    @property
    def part(self) -> Part | None:
        return self.layout.part if isinstance(self.layout, Cut) else None

    def is_same_along(self, dim: int) -> bool:
        """Return whether all slices of a dimension are equal, so that any rank has those of the model."""
        return self.sizes[dim] == 1 or dim in self.repeated

    def cut_at(self, dim: int) -> Part | None:
        """Return the part of a dimension that the rank has, None for all of it."""
        return self.layout.part if isinstance(self.layout, Cut) and self.layout.dim == dim else None


@dataclass(frozen=True)
class Call:
    """A call of an operator.

    Args:
        node: The node.
        whole: The node of the unsharded model.
        name: `aten.view`, without the overload.
        values: Each argument by name: an operand, a list of operands, or what the node has.
        ranks: How many there are.
        compared: Arguments that the rule has compared with those of the unsharded model.
    """

    node: Node
    whole: Node
    name: str
    values: Mapping[str, Any]
    ranks: int
    compared: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, node: Node, whole: Node, name: str, layouts: Mapping[Node, Results], ranks: int) -> Call:
        """Return the call of a node, whose operands have layouts."""

        def made(value: Any) -> Any:
            if isinstance(value, Node):
                layout = layouts.get(value, Common.WHOLE)
                is_tensor = isinstance(value.meta.get("val"), torch.Tensor)
                return Operand.of(value, layout) if is_tensor and not isinstance(layout, list) else value
            return [made(item) for item in value] if isinstance(value, (list, tuple)) else value

        given = named_arguments(node)
        return cls(node, whole, name, {key: made(value) for key, value in given.items()}, ranks)

    def operands(self) -> Iterator[Operand]:
        """Yield the tensors it is given."""

        def found(value: Any) -> Iterator[Operand]:
            if isinstance(value, Operand):
                yield value
            for item in value if isinstance(value, list) else ():
                yield from found(item)

        for value in self.values.values():
            yield from found(value)

    @property
    def first(self) -> Operand:
        """The first tensor."""
        return next(self.operands())

    def get(self, *names: str) -> Any:
        """Return the argument of the first of some names that the call has, else None."""
        return next((self.values[name] for name in names if name in self.values), None)

    @property
    def results(self) -> list[tuple[int, ...]]:
        """The sizes of each result."""
        return [
            sizes_of(item) if isinstance(item, torch.Tensor) else ()
            for item in results_of(self.node.meta.get("val"))
        ]

    @property
    def whole_sizes(self) -> tuple[int, ...]:
        """The sizes of the only result in the unsharded model."""
        return sizes_of(self.whole.meta["val"])

    def whole_number(self, *names: str) -> Any:
        """Return an integer argument as `get` does, of the unsharded model; symbolic ones at the example."""
        given = named_arguments(self.whole)
        return at_example(next((given[name] for name in names if name in given), None))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the only result."""
        return self.results[0]


def sizes_of(value: torch.Tensor) -> tuple[int, ...]:
    """Return sizes, symbolic ones at the example; 0 where no example is known."""
    return tuple(size if isinstance(size, int) else hint_of(size) or 0 for size in value.shape)


def at_example(value: Any) -> Any:
    """Return a number that a node computes as it is for the example inputs; another value as it is."""
    number = number_of(value)
    return hint_of(number) if isinstance(number, torch.SymInt) else number


def cut_of(operand: Operand) -> Cut:
    """Return the layout of an operand of which the rank has a part.

    Raises:
        Fault: It is a summand.
    """
    if isinstance(operand.layout, Cut):
        return operand.layout
    raise Fault("takes one rank's summand of what all ranks have to add up first (all_reduce)")
