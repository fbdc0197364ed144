"""Match the nodes of a rank's program with those of the unsharded model, and find numbers that differ.

Both programs are traced from the same code, one with the sizes of a rank and one with the sizes of the model.
A number differs if and only if the code computes it from a size of the rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fakexport._torch.operators.operator_schema import argument_names
from fakexport._torch.tracing.symbolic_numbers import expression_of, noted_expression_of
from fakexport.exporting.program import attribute, module_path, operator_name
from fakexport.files.documents import ParallelRecord

from .layout import Layout, NumberFault, Placement, Shard

_VOCABULARY = "embedding_rowwise"
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PROPERTIES = frozenset({"sym_size", "sym_stride", "sym_numel", "sym_storage_offset"})
# The messages of these operators contain names of nodes, so they are not compared.
_WITH_MESSAGE = frozenset({"aten._assert_scalar", "aten._assert_async"})


class Counterparts:
    """A map from the nodes of a rank's program to the nodes of the unsharded model's program.

    Args:
        record: The shards of the rank's weights, and the parallel plan.
    """

    def __init__(self, record: ParallelRecord) -> None:
        self.nodes: dict[Node, Node] = {}
        self._record = record

    def pair(self, owner: GraphModule, whole: GraphModule) -> None:
        """Pair the nodes of two graphs in order. Symbolic numbers are compared by their expressions.

        Raises:
            OtherNode: the graphs have different operators.
        """
        for node, other in zip_longest(_compared(owner), _compared(whole)):
            if node is None or other is None or _kind(node) != _kind(other):
                raise OtherNode(node, other)
            self.nodes[node] = other
        for node in owner.graph.nodes:
            if is_copy(node):
                self.nodes[node] = self.nodes[original(node)]

    def expect_numbers(self, node: Node, compared: Collection[str] = ()) -> None:
        """Require that a node has the same numbers as its counterpart.

        Args:
            node: A node of the rank's program.
            compared: Names of arguments that a rule has already compared.
        Raises:
            NumberFault: a number differs.
        """
        for name, (mine, theirs) in self.differing(node).items():
            if name not in compared and not self._is_vocabulary(node, mine, theirs):
                raise NumberFault(
                    f"calls {operator_name(node)} with {name}={mine}, but the unsharded model "
                    f"uses {theirs}: the model computes a number from the size of a shard"
                )

    def expect_shapes(self, node: Node, layout: Layout | Sequence[Layout]) -> None:
        """Require that each result of a node has the shape that its layout implies.

        Raises:
            NumberFault: a shape differs.
        """
        mine, theirs = (results_of(each.meta.get("val")) for each in (node, self.nodes[node]))
        if len(mine) != len(theirs):
            raise NumberFault(f"returns {len(mine)} tensors, but the unsharded model returns {len(theirs)}")
        layouts = [layout] * len(mine) if isinstance(layout, (Placement, Shard)) else layout
        for each, one, two in zip(layouts, mine, theirs, strict=True):
            if isinstance(one, torch.Tensor) and not _is_shaped(each, one, two):
                raise NumberFault(
                    f"has a tensor of shape {_sizes(one)}, but the unsharded model has shape {_sizes(two)}"
                )

    def _is_vocabulary(self, node: Node, mine: str, theirs: str) -> bool:
        """Return whether two numbers are corresponding bounds of vocabulary ranges: both lower or both upper.

        `mine` is the bound of this rank's range. `theirs` is the bound of rank 0's range.
        """
        path = module_path(node)
        shard = self._record.shards.get(f"{path}.weight")
        if shard is None or self._record.styles.get(path) != _VOCABULARY:
            return False
        (start, end), last = shard.ranges[0], -(-shard.shape[0] // self._record.ranks)
        return (mine, theirs) in ((str(start), "0"), (str(end), str(last)))

    def differing(self, node: Node) -> dict[str, tuple[Any, Any]]:
        """Return the arguments whose numbers differ, by name: the values on the rank and in the model."""
        other = self.nodes[node]
        found = {}
        mine, theirs = named_arguments(node), named_arguments(other)
        for name in dict.fromkeys((*mine, *theirs)):
            if name == "assert_msg" and operator_name(node).rpartition(".")[0] in _WITH_MESSAGE:
                continue
            one, two = mine.get(name), theirs.get(name)
            if not self._is_same(one, two):
                found[name] = (_shown(one), _shown(two))
        return found

    def _is_same(self, one: Any, two: Any) -> bool:
        if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
            return len(one) == len(two) and all(map(self._is_same, one, two))
        if isinstance(one, slice) and isinstance(two, slice):
            return self._is_same([one.start, one.stop, one.step], [two.start, two.stop, two.step])
        if is_number(one) and is_number(two):
            return is_same_number(number_of(one), number_of(two))
        if isinstance(one, Node) and isinstance(two, Node):
            return self.nodes.get(one) is original(two) or (one.op == two.op == "get_attr")
        return type(one) is type(two) and bool(one == two)


class OtherNode(NumberFault):
    """The model's code takes a different path with the sizes of a rank than with those of the whole model."""

    def __init__(self, node: Node | None, other: Node | None) -> None:
        self.node = node
        mine, theirs = (_called(each) for each in (node, other))
        super().__init__(f"{mine} on a rank, but {theirs} in the unsharded model")


def _called(node: Node | None) -> str:
    return "makes no further call" if node is None else f"calls {operator_name(node)}"


def _compared(owner: GraphModule) -> Iterator[Node]:
    """Yield the nodes to compare: all but `contiguous` nodes and symbolic numbers computed from sizes."""
    nodes = (node for node in owner.graph.nodes if not is_copy(node))
    return (node for node in nodes if not is_number(node) or is_read_from_data(node))


def is_copy(node: Node) -> bool:
    """Return whether a node calls `contiguous`. For some sizes, such as a single head, a trace omits it."""
    return operator_name(node) == "aten.contiguous.default"


def original(node: Node) -> Node:
    """Return the input of a `contiguous` node. Return any other node unchanged."""
    while is_copy(node):
        (node,) = node.all_input_nodes
    return node


def is_number(value: Any) -> bool:
    """Return whether an argument is a number, either as a constant or as a node that computes one."""
    if not isinstance(value, Node):
        return isinstance(value, (bool, int, float))
    return value.op == "call_function" and isinstance(value.meta.get("val"), (bool, int, float, *_SYMBOLIC))


def is_read_from_data(node: Node) -> bool:
    """Return whether an operator reads a number from the data of a tensor."""
    tensors = [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]
    kind = operator_name(node).removeprefix("aten.").partition(".")[0]
    return is_number(node) and bool(tensors) and kind not in _PROPERTIES


def number_of(value: Any) -> Any:
    """Return the number that a node computes, or the number itself if it is a constant."""
    return value.meta["val"] if isinstance(value, Node) else value


def is_same_number(one: Any, two: Any) -> bool:
    """Return whether two numbers are equal for all input sizes. Both programs use the same symbols."""
    if isinstance(one, _SYMBOLIC) and isinstance(two, _SYMBOLIC):
        return bool(noted_expression_of(one) == noted_expression_of(two)) or bool(
            expression_of(one) == expression_of(two)
        )
    if isinstance(one, _SYMBOLIC) or isinstance(two, _SYMBOLIC):
        symbolic, number = (one, two) if isinstance(one, _SYMBOLIC) else (two, one)
        return bool(expression_of(symbolic) == number)
    return type(one) is type(two) and repr(one) == repr(two)


def is_same_shape(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether two tensors have equal shapes for all input sizes."""
    return one.ndim == two.ndim and all(map(is_same_number, one.shape, two.shape))


def _is_shaped(layout: Layout, mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return whether a rank's tensor has the shape that its layout and the unsharded model's tensor imply."""
    if layout in (Placement.FILL, Placement.PARTS, Placement.OWN_ROWS):
        return mine.ndim == theirs.ndim
    if not isinstance(layout, Shard):
        return is_same_shape(mine, theirs)
    sizes = list(zip(mine.shape, theirs.shape, strict=False))
    return mine.ndim == theirs.ndim and all(
        pair == (layout.part.local, layout.part.size) if dim == layout.dim else is_same_number(*pair)
        for dim, pair in enumerate(sizes)
    )


def _sizes(value: torch.Tensor) -> str:
    return f"({', '.join(map(str, value.shape))})"


def results_of(value: Any) -> Sequence[Any]:
    """Return the results of a node as a sequence."""
    return value if isinstance(value, (list, tuple)) else (value,)


def named_arguments(node: Node) -> Mapping[str, Any]:
    """Return the arguments of a node by name."""
    names = argument_names(node.target) or tuple(map(str, range(len(node.args))))
    names = (*names, *map(str, range(len(names), len(node.args))))
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def graph_of(owner: GraphModule, value: Any) -> GraphModule | None:
    """Return the subgraph that an argument of a higher-order operator refers to, or None."""
    if not isinstance(value, Node) or value.op != "get_attr":
        return None
    found = attribute(owner, str(value.target))
    return found if isinstance(found, GraphModule) else None


def _kind(node: Node) -> tuple[str, str]:
    return node.op, operator_name(node) if node.op == "call_function" else ""


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    return str(number_of(value)) if is_number(value) else str(value)
