"""The node of the unsharded model for each node of a rank's program, and the numbers in which they differ.

Both programs are traced from the same code, with the sizes of a rank and with those of the model. So a number
that the code computes from a rank's size is found by its value, however it was computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fakexport._torch.operator_schema import argument_names
from fakexport._torch.symbolic_numbers import expression_of, noted_expression_of
from fakexport.documents import ParallelRecord
from fakexport.program import attribute, module_path, operator_name

from .layout import Common, Cut, Layout, NumberFault

_VOCABULARY = "embedding_rowwise"
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PROPERTIES = frozenset({"sym_size", "sym_stride", "sym_numel", "sym_storage_offset"})
# The message of these operators quotes the names of nodes.
_WITH_MESSAGE = frozenset({"aten._assert_scalar", "aten._assert_async"})


class Counterparts:
    """The nodes of the unsharded model's program by those of a rank's program.

    Args:
        record: What the rank has of each weight, and the plan.
    """

    def __init__(self, record: ParallelRecord) -> None:
        self.nodes: dict[Node, Node] = {}
        self._record = record

    def pair(self, owner: GraphModule, whole: GraphModule) -> None:
        """Pair the nodes of two graphs in their order; symbolic numbers are compared by their expressions.

        Raises:
            OtherNode: The graphs differ.
        """
        for node, other in zip_longest(_compared(owner), _compared(whole)):
            if node is None or other is None or _kind(node) != _kind(other):
                raise OtherNode(node, other)
            self.nodes[node] = other
        for node in owner.graph.nodes:
            if is_copy(node):
                self.nodes[node] = self.nodes[original(node)]

    def expect_numbers(self, node: Node, compared: Collection[str] = ()) -> None:
        """Expect a node to have the numbers of its counterpart.

        Args:
            node: A node of the rank.
            compared: Arguments that a rule has compared.
        Raises:
            NumberFault: One differs.
        """
        for name, (mine, theirs) in self.differing(node).items():
            if name not in compared and not self._is_vocabulary(node, mine, theirs):
                raise NumberFault(
                    f"calls {operator_name(node)} with {name}={mine}, and the unsharded model with {theirs}: "
                    "a size of a rank is used as a number"
                )

    def expect_shapes(self, node: Node, layout: Layout | Sequence[Layout]) -> None:
        """Expect each result of a node to have the shape that its layout says.

        Raises:
            NumberFault: One has another shape.
        """
        mine, theirs = (results_of(each.meta.get("val")) for each in (node, self.nodes[node]))
        if len(mine) != len(theirs):
            raise NumberFault(f"returns {len(mine)} tensors, and in the unsharded model {len(theirs)}")
        layouts = [layout] * len(mine) if isinstance(layout, (Common, Cut)) else layout
        for each, one, two in zip(layouts, mine, theirs, strict=True):
            if isinstance(one, torch.Tensor) and not _is_shaped(each, one, two):
                raise NumberFault(
                    f"has a tensor of {_sizes(one)}, and the unsharded model one of {_sizes(two)}"
                )

    def _is_vocabulary(self, node: Node, mine: str, theirs: str) -> bool:
        """Return whether two numbers are bounds of the vocabulary of a rank, and of rank 0."""
        path = module_path(node)
        shard = self._record.shards.get(f"{path}.weight")
        if shard is None or self._record.styles.get(path) != _VOCABULARY:
            return False
        (start, end), last = shard.ranges[0], -(-shard.shape[0] // self._record.ranks)
        return (mine, theirs) in ((str(start), "0"), (str(end), str(last)))

    def differing(self, node: Node) -> dict[str, tuple[Any, Any]]:
        """Return the arguments of a node, by name, whose numbers are not those of the unsharded model."""
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
    """The code of the model takes a different path with the sizes of a rank."""

    def __init__(self, node: Node | None, other: Node | None) -> None:
        self.node = node
        mine, theirs = (_called(each) for each in (node, other))
        super().__init__(f"{mine} on a rank and {theirs} in the unsharded model")


def _called(node: Node | None) -> str:
    return "ends here" if node is None else f"calls {operator_name(node)}"


def _compared(owner: GraphModule) -> Iterator[Node]:
    """Yield the nodes but for symbolic numbers that are computed from sizes, and but for `contiguous`."""
    nodes = (node for node in owner.graph.nodes if not is_copy(node))
    return (node for node in nodes if not is_number(node) or is_read_from_data(node))


def is_copy(node: Node) -> bool:
    """Return whether a node is `contiguous`: torch leaves it out for some sizes, such as of a single head."""
    return operator_name(node) == "aten.contiguous.default"


def original(node: Node) -> Node:
    """Return the tensor of which a node is a contiguous copy; any other node is returned as it is."""
    while is_copy(node):
        (node,) = node.all_input_nodes
    return node


def is_number(value: Any) -> bool:
    """Return whether an argument is a number: a constant, or a node that computes one."""
    if not isinstance(value, Node):
        return isinstance(value, (bool, int, float))
    return value.op == "call_function" and isinstance(value.meta.get("val"), (bool, int, float, *_SYMBOLIC))


def is_read_from_data(node: Node) -> bool:
    """Return whether a number is one that an operator reads from the data of a tensor."""
    tensors = [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]
    kind = operator_name(node).removeprefix("aten.").partition(".")[0]
    return is_number(node) and bool(tensors) and kind not in _PROPERTIES


def number_of(value: Any) -> Any:
    """Return a number, or the symbolic number that a node computes."""
    return value.meta["val"] if isinstance(value, Node) else value


def is_same_number(one: Any, two: Any) -> bool:
    """Return whether two numbers are equal at all sizes of the inputs, which have the same symbols."""
    if isinstance(one, _SYMBOLIC) and isinstance(two, _SYMBOLIC):
        return bool(noted_expression_of(one) == noted_expression_of(two)) or bool(
            expression_of(one) == expression_of(two)
        )
    if isinstance(one, _SYMBOLIC) or isinstance(two, _SYMBOLIC):
        symbolic, number = (one, two) if isinstance(one, _SYMBOLIC) else (two, one)
        return bool(expression_of(symbolic) == number)
    return type(one) is type(two) and repr(one) == repr(two)


def is_same_shape(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether two tensors have the same sizes at all sizes of the inputs."""
    return one.ndim == two.ndim and all(map(is_same_number, one.shape, two.shape))


def _is_shaped(layout: Layout, mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return whether a tensor has the shape that its layout says of the tensor of the unsharded model."""
    if layout in (Common.FILL, Common.PARTS, Common.OWN_ROWS):
        return mine.ndim == theirs.ndim
    if not isinstance(layout, Cut):
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
    """Return the graph that an argument of a higher-order operator names; None for another argument."""
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
