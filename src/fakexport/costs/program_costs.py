"""What one call of a program computes, reads and sends, as expressions over its symbols."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.functional_collectives import collective_of
from fakexport._torch.operator_memory import tensors_in
from fakexport._torch.size_values import symbols_of
from fakexport.costs.held_reads import HeldReads, Sources, Value, sources_of
from fakexport.costs.node_products import NodeProducts
from fakexport.memory import REGIONS, KnownSizes, Liveness, Size, operands
from fakexport.program import Visit, facts_of, least_received, moved_tensor, operator_name, plain_name

_AUTOCAST = "higher_order.wrap_with_autocast"
_BRANCH = "higher_order.cond"


@dataclass(frozen=True, slots=True)
class NodeProduct:
    """Floating-point operations of a node on one device: by torch's formula, and the least of any kernel."""

    device: str
    dtype: str
    flops: Size
    least: Size


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What one node computes, reads of what is held from the start, and sends.

    Args:
        visit: The node.
        products: What a matrix product, a convolution or attention computes; else ().
        reads: Storage -> bytes of it that any kernel reads, once products have anything to compute.
        sent: Source, target and bytes of a tensor that moves; None if none does.
        received: Device and bytes that it receives from other ranks at least; None without a collective.
        branch: The `cond` that it is inside of and the branch; None where it is in none.
        is_sure: Whether every call executes it: not so in branches and loops.
    """

    visit: Visit
    products: tuple[NodeProduct, ...]
    reads: Sources
    sent: tuple[str, str, Size] | None
    received: tuple[str, Size] | None
    branch: tuple[int, str] | None
    is_sure: bool

    def sizes(self) -> Iterator[Size]:
        """Yield every number or expression in it."""
        for product in self.products:
            yield from (product.flops, product.least)
        yield from self.reads.values()
        if self.sent is not None:
            yield self.sent[2]
        if self.received is not None:
            yield self.received[1]


@dataclass(frozen=True)
class ProgramCosts:
    """The costs of a program's nodes that compute, read or send, in the order of execution.

    `uncounted` names operators that multiply and count as 0, with the reason.
    """

    liveness: Liveness
    nodes: tuple[NodeCost, ...]
    returned: frozenset[Node]
    uncounted: Mapping[str, str]

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbols that some cost depends on."""
        sizes = [size for node in self.nodes for size in node.sizes()]
        return frozenset(symbol.name for size in sizes for symbol in symbols_of(size))


def program_costs(program: ExportedProgram, liveness: Liveness) -> ProgramCosts:
    """Return what one call of a program computes, reads and sends."""
    reading = _Reading(program, liveness)
    nodes = tuple(reading.nodes())
    returned = frozenset(program.graph.output_node().all_input_nodes)
    return ProgramCosts(liveness, nodes, returned, reading.products.uncounted)


_Frame = dict[Node, Value]
"""The values of one run of a graph that are made of something held."""


class _Reading:
    def __init__(self, program: ExportedProgram, liveness: Liveness) -> None:
        self._program, self._liveness = program, liveness
        self._size = KnownSizes()
        self.products = NodeProducts()
        held = liveness.storages[: liveness.held]
        self._places = {
            name: index for index, storage in enumerate(held) for name in (*storage.names, storage.name)
        }
        self._itemsizes = [0] * len(held)
        self._reads = HeldReads(self._size, self._itemsizes)
        record = facts_of(program).parallel
        self._ranks = 1 if record is None else record.ranks
        self._has_links = len(liveness.devices) > 1 or self._ranks > 1
        self._frames: dict[tuple[int, str], _Frame] = {}

    def nodes(self) -> Iterator[NodeCost]:
        seen: set[tuple[int, Node]] = set()
        for visit in self._liveness.visits:
            frame = self._frame(visit)
            # The second round of a loop.
            key = (visit.caller.index if visit.caller else -1, visit.node)
            if visit.node.op == "call_function" and key not in seen:
                seen.add(key)
                yield from self._node(visit, frame)

    def _node(self, visit: Visit, frame: _Frame) -> Iterator[NodeCost]:
        node = visit.node
        products = self.products.of(node, _casts(visit))
        reads: Sources = {}
        if any(source in frame for source in node.all_input_nodes):
            reads = self._followed(node, frame, is_reader=bool(products))
        sent = self._sent(node) if self._has_links else None
        received = self._received(node) if self._has_links else None
        if products or reads or sent or received:
            yield NodeCost(
                visit,
                tuple(
                    NodeProduct(p.device, plain_name(p.dtype), self._size(p.flops), self._size(p.least))
                    for p in products
                ),
                reads,
                sent,
                received,
                _branch(visit),
                _is_sure(visit),
            )

    def _followed(self, node: Node, frame: _Frame, *, is_reader: bool) -> Sources:
        """Return what a node reads of what is held; else its value passes that on."""
        if operator_name(node) == "operator.getitem":
            value = _item(node, frame)
        else:
            given = list(sources_of((node.args, dict(node.kwargs)), frame))
            if is_reader or self._reads.is_reduction(node):
                return self._reads.read(node, given)
            value = self._reads.passed_on(node, given)
        if any(value):
            frame[node] = value
        return {}

    def _received(self, node: Node) -> tuple[str, Size] | None:
        kind, given = collective_of(node), node.args[0] if node.args else None
        if kind is None or not isinstance(given, Node):
            return None
        tensor = given.meta["val"]
        size = least_received(kind, tensor.numel() * tensor.itemsize, self._ranks)
        return str(tensor.device), self._size(size)

    def _sent(self, node: Node) -> tuple[str, str, Size] | None:
        moved = moved_tensor(node)
        if moved is None:
            return None
        return str(moved[0].device), str(moved[1].device), self._bytes(moved[1])

    def _frame(self, visit: Visit) -> _Frame:
        """Return the values of the graph that a node is in, its inputs among them."""
        key = (visit.caller.index if visit.caller else -1, visit.graph)
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = {node: value for node, value in self._given(visit) if any(value)}
        return frame

    def _given(self, visit: Visit) -> Iterator[tuple[Node, Value]]:
        placeholders = visit.owner.graph.find_nodes(op="placeholder")
        if visit.caller is None:
            for node, spec in zip(placeholders, self._program.graph_signature.input_specs, strict=True):
                yield node, self._held(node, spec.target or node.name)
            return
        outer = self._frame(visit.caller)
        for node, operand in zip(placeholders, operands(visit.caller.node), strict=False):
            yield node, tuple(sources_of(operand, outer))

    def _held(self, node: Node, name: str) -> Value:
        tensors = tensors_in(node.meta.get("val"))
        place = self._places.get(name)
        if place is None or len(tensors) != 1:
            return tuple({} for _ in tensors)
        self._itemsizes[place] = max(self._itemsizes[place], tensors[0].itemsize)
        return ({place: self._bytes(tensors[0])},)

    def _bytes(self, tensor: Any) -> Size:
        return self._size(tensor.numel() * tensor.itemsize)


def _item(node: Node, frame: _Frame) -> Value:
    """Return the sources of one of several results."""
    source, index = node.args[0], node.args[1]
    whole = frame.get(source, ()) if isinstance(source, Node) else ()
    values = source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(values, (list, tuple)) or not isinstance(index, int):
        return tuple({} for _ in tensors_in(node.meta.get("val")))
    index %= max(1, len(values))
    first = len(tensors_in(values[:index]))
    return whole[first : first + len(tensors_in(values[index]))]


def _callers(visit: Visit) -> Iterator[Visit]:
    caller = visit.caller
    while caller is not None:
        yield caller
        caller = caller.caller


def _casts(visit: Visit) -> Sequence[Any] | None:
    """Return the arguments of the innermost autocast region around a node."""
    regions = (caller.node for caller in _callers(visit) if operator_name(caller.node) == _AUTOCAST)
    return next((node.args[:4] for node in regions), None)


def _is_sure(visit: Visit) -> bool:
    return all(operator_name(caller.node) in REGIONS for caller in _callers(visit))


def _branch(visit: Visit) -> tuple[int, str] | None:
    """Return the outermost `cond` around a node, and which branch it is in."""
    found = None
    inner = visit
    for caller in _callers(visit):
        if operator_name(caller.node) == _BRANCH:
            found = caller.index, inner.graph
        inner = caller
    return found
