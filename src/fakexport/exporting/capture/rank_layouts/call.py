"""A node of a rank's program with the layouts of its operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from fakexport._torch.tracing.symbolic_numbers import hint_of

from .counterparts import named_arguments, number_of, results_of
from .layout import Fault, Layout, Placement, Shard, ShardedDim

Results = Layout | list[Layout]
"""The layout of a tensor, or of each tensor in a list."""


@dataclass(frozen=True)
class Operand:
    """A tensor operand of a node.

    Args:
        node: The node that produced the tensor.
        layout: The layout of the operand.
        sizes: Sizes on the rank. For a symbolic size, its value for the example inputs, or 0 if the value is
            unknown.
        repeated: Dimensions along which all slices are equal, for example after `expand`.
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
    def part(self) -> ShardedDim | None:
        return self.layout.part if isinstance(self.layout, Shard) else None

    def is_same_along(self, dim: int) -> bool:
        """Return whether all slices along a dimension are equal, so that the rank may use any of them."""
        return self.sizes[dim] == 1 or dim in self.repeated

    def cut_at(self, dim: int) -> ShardedDim | None:
        """Return this rank's shard of a dimension, or None if the dimension is not sharded."""
        return self.layout.part if isinstance(self.layout, Shard) and self.layout.dim == dim else None


@dataclass(frozen=True)
class Call:
    """A call of an operator in a rank's program.

    Args:
        node: The node in the rank's program.
        whole: The corresponding node in the program of the unsharded model.
        name: Name of the operator without the overload, such as `aten.view`.
        values: Each argument by name: an operand, a list of operands, or the original argument if it is not a
            tensor.
        ranks: Number of ranks.
        compared: Names of arguments that the rule has already compared with the unsharded model.
    """

    node: Node
    whole: Node
    name: str
    values: Mapping[str, Any]
    ranks: int
    compared: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, node: Node, whole: Node, name: str, layouts: Mapping[Node, Results], ranks: int) -> Call:
        """Return the call of a node, given the layouts of the nodes before it."""

        def made(value: Any) -> Any:
            if isinstance(value, Node):
                layout = layouts.get(value, Placement.REPLICATE)
                is_tensor = isinstance(value.meta.get("val"), torch.Tensor)
                return Operand.of(value, layout) if is_tensor and not isinstance(layout, list) else value
            return [made(item) for item in value] if isinstance(value, (list, tuple)) else value

        given = named_arguments(node)
        return cls(node, whole, name, {key: made(value) for key, value in given.items()}, ranks)

    def operands(self) -> Iterator[Operand]:
        """Yield the tensor operands, including those in lists."""

        def found(value: Any) -> Iterator[Operand]:
            if isinstance(value, Operand):
                yield value
            for item in value if isinstance(value, list) else ():
                yield from found(item)

        for value in self.values.values():
            yield from found(value)

    @property
    def first(self) -> Operand:
        """The first tensor operand."""
        return next(self.operands())

    def get(self, *names: str) -> Any:
        """Return the first of the named arguments that the call has, or None if it has none of them."""
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
        """The sizes of the corresponding node's only result in the unsharded model."""
        return sizes_of(self.whole.meta["val"])

    def whole_number(self, *names: str) -> Any:
        """Return an integer argument of the unsharded model's call, evaluated for the example inputs."""
        given = named_arguments(self.whole)
        return at_example(next((given[name] for name in names if name in given), None))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the only result."""
        return self.results[0]


def sizes_of(value: torch.Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor. Symbolic sizes are evaluated for the example inputs, or 0 if unknown."""
    return tuple(size if isinstance(size, int) else hint_of(size) or 0 for size in value.shape)


def at_example(value: Any) -> Any:
    """Return a symbolic number evaluated for the example inputs. Other values are returned unchanged."""
    number = number_of(value)
    return hint_of(number) if isinstance(number, torch.SymInt) else number


def cut_of(operand: Operand) -> Shard:
    """Return the layout of an operand that is sharded.

    Raises:
        Fault: the operand is a partial sum.
    """
    if isinstance(operand.layout, Shard):
        return operand.layout
    raise Fault("uses a partial sum of one rank before it is added up over all ranks (all_reduce)")
