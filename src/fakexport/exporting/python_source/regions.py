"""Group the nodes of a graph by module call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from torch.fx import Graph, Node

from fakexport.exporting.program import NO_PATH, plain_path


class Call(NamedTuple):
    """A call of a module, as recorded in the module stack of a node.

    Args:
        key: A key that distinguishes calls of the same module.
        path: Path of the module, such as `model.layers.3`, or "" for the root.
        kind: Full name of the module's class: `torch.nn.modules.linear.Linear`.
    """

    key: str
    path: str
    kind: str


@dataclass(eq=False)
class Region:
    """Consecutive nodes of the graph that belong to one call of one module.

    If the nodes of a call are not all consecutive, the call has several regions.

    Args:
        call: The call.
        items: Nodes of the module itself and regions of the modules that it calls, in order.
    """

    call: Call
    items: list[Node | Region] = field(default_factory=list)

    @cached_property
    def nodes(self) -> dict[Node, None]:
        """All nodes in the region, including nested regions, in order."""
        found: dict[Node, None] = {}
        for item in self.items:
            found.update(item.nodes if isinstance(item, Region) else {item: None})
        return found

    @cached_property
    def inputs(self) -> list[Node]:
        """Values that the region uses but does not compute, without subgraphs, in the order of first use."""
        used = dict.fromkeys(source for node in self.nodes for source in node.all_input_nodes)
        return [source for source in used if source not in self.nodes and source.op != "get_attr"]

    @cached_property
    def outputs(self) -> list[Node]:
        """Values that the region computes and that are used outside of it, in the order of computation."""
        return [node for node in self.nodes if not node.users.keys() <= self.nodes.keys()]

    def inner(self) -> Iterator[Region]:
        """Yield all regions nested in this one, in the order of their start."""
        for item in self.items:
            if isinstance(item, Region):
                yield item
                yield from item.inner()


def operations(graph: Graph) -> list[Node]:
    """Return the nodes that compute something."""
    return [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]


def _stack(node: Node) -> list[Call] | None:
    """Return the module calls around a node, outermost first, or None if the graph does not record them."""
    stack = node.meta.get("nn_module_stack")
    if not stack or next(iter(stack.values()))[0] == NO_PATH:
        return None
    return [Call(str(key), plain_path(path), _class_name(kind)) for key, (path, kind) in stack.items()]


def _class_name(kind: type | str) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def regions_of(graph: Graph) -> Region:
    """Group the nodes of a graph into nested regions. Return the outermost region (the program)."""
    nodes = operations(graph)
    stacks = [_stack(node) for node in nodes]
    kinds = (call.kind for stack in stacks for call in stack or () if not call.path)
    root = Region(Call("", "", next(kinds, "")))
    opened = [root]
    for node, calls in zip(nodes, _known_calls(stacks), strict=True):
        depth = len(_common(calls, [region.call for region in opened[1:]]))
        del opened[depth + 1 :]
        for call in calls[depth:]:
            region = Region(call)
            opened[-1].items.append(region)
            opened.append(region)
        opened[-1].items.append(node)
    return root


def _known_calls(stacks: Sequence[Sequence[Call] | None]) -> Iterator[list[Call]]:
    """Yield the calls around each node. Nodes inserted by torch get the common calls of their neighbors."""
    calls = [None if stack is None else _nested(stack) for stack in stacks]
    following: list[list[Call]] = [[]]
    for own in reversed(calls):
        following.append(following[-1] if own is None else own)
    before: list[Call] = []
    for own, after in zip(calls, following[:0:-1], strict=True):
        before = _common(before, after) if own is None else own
        yield before


def _common(first: Sequence[Call], second: Sequence[Call]) -> list[Call]:
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))]


def _nested(stack: Sequence[Call]) -> list[Call]:
    """Return the calls whose modules are nested in each other, without the root.

    If a module calls a module that is not its submodule, the nodes of the called module belong to the caller.
    """
    calls: list[Call] = []
    for call in stack:
        above = f"{calls[-1].path}." if calls else ""
        if call.path and call.path.startswith(above):
            calls.append(call)
    return calls
