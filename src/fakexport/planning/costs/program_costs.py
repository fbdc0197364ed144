"""Count the FLOPs, bytes read and bytes sent of one call of a program, as expressions over its symbols."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.costs.operator_flops import Product, call_products, has_formula
from fakexport._torch.costs.operator_memory import is_composite, tensors_in
from fakexport._torch.emulation.fake_tensors import FakeTensorMode, mode_of
from fakexport._torch.operators.functional_collectives import collective_of
from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.operators.packaged_operators import TORCH_NAMESPACES
from fakexport._torch.tracing.symbolic_numbers import symbols_of, without_new_guards
from fakexport.exporting.program import (
    Visit,
    facts_of,
    least_received,
    moved_tensor,
    operator_name,
    plain_name,
)
from fakexport.planning.costs.held_reads import HeldReads, Sources, Value, sources_of
from fakexport.planning.memory import (
    AUTOCAST,
    BRANCH,
    REGIONS,
    KnownSizes,
    Liveness,
    Size,
    operands,
    run_on_fakes,
    value_key,
    values_of,
)


@dataclass(frozen=True, slots=True)
class NodeProduct:
    """FLOPs of a node on a device. `flops` is torch's formula, and `least` the minimum of all kernels."""

    device: str
    dtype: str
    flops: Size
    least: Size


@dataclass(frozen=True, slots=True)
class NodeCost:
    """FLOPs, reads and transfers of one node. Only reads of weights, constants and inputs are counted.

    Args:
        products: FLOPs, if the node is a matrix product, a convolution or attention.
        reads: Storage index -> minimum bytes that any kernel reads, unless a product is empty at run time.
        sent: Source, target and bytes of a tensor that the node moves between devices.
        received: Device and minimum number of bytes that a collective receives from other ranks.
        branch: Index of the `cond` and name of the branch that contain the node.
        is_sure: Whether every call executes the node. False in branches and loops.
    """

    visit: Visit
    products: tuple[NodeProduct, ...]
    reads: Sources
    sent: tuple[str, str, Size] | None
    received: tuple[str, Size] | None
    branch: tuple[int, str] | None
    is_sure: bool

    def sizes(self) -> Iterator[Size]:
        for product in self.products:
            yield from (product.flops, product.least)
        yield from self.reads.values()
        if self.sent is not None:
            yield self.sent[2]
        if self.received is not None:
            yield self.received[1]


@dataclass(frozen=True)
class ProgramCosts:
    """The costs of the nodes that compute, read memory or transfer data between devices, in execution order.

    `uncounted` contains operators that multiply but are counted as 0, with the reason.
    """

    liveness: Liveness
    nodes: tuple[NodeCost, ...]
    returned: frozenset[Node]
    uncounted: Mapping[str, str]

    @property
    def symbols(self) -> frozenset[str]:
        sizes = [size for node in self.nodes for size in node.sizes()]
        return frozenset(symbol.name for size in sizes for symbol in symbols_of(size))


def program_costs(program: ExportedProgram, liveness: Liveness) -> ProgramCosts:
    reading = _Reading(program, liveness)
    nodes = tuple(reading.nodes())
    returned = frozenset(program.graph.output_node().all_input_nodes)
    return ProgramCosts(liveness, nodes, returned, reading.products.uncounted)


# Names of torch operators that multiply. Torch has no FLOP formula for many of them.
_MULTIPLIES = re.compile(
    r"(?:.*_)?(?:linear|matmul|\w*mm|\w*mv|conv\w*|einsum|tensordot|bilinear|\w*attention|lstm|gru|rnn|\w*dot"
    r"|inner|cdist|linalg|fft)(?:_.*|\d.*)?"
)
_REASON = "torch has no FLOP formula for it"


class NodeProducts:
    """Count the FLOPs of a program's matrix products, convolutions and attention. Results are cached."""

    def __init__(self) -> None:
        self.uncounted: dict[str, str] = {}
        """Operators that multiply but are counted as 0 FLOP, with the reason."""
        self._known: dict[Hashable, tuple[Product, ...]] = {}

    def of(self, node: Node, casts: Sequence[Any] | None) -> tuple[Product, ...]:
        """Return the products of a node, or `()` if there are none.

        `casts` are the arguments of the autocast region around the node, or None.
        """
        operator = node.target
        if not has_formula(operator) and not self._is_product(node):
            return ()
        args, kwargs = values_of(node)
        named = tuple([(name, value_key(value)) for name, value in kwargs.items()])
        key = (operator, tuple(casts or ()), value_key(args), named)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._looked_at(node, casts)
        return found

    def _is_product(self, node: Node) -> bool:
        """Return whether a node may decompose into products. Record those without a FLOP formula."""
        operator = node.target
        if not isinstance(operator, OpOverload):
            return False
        namespace, _, name = operator.name().partition(".")[0].partition("::")
        is_own = namespace in TORCH_NAMESPACES
        if is_own and (name.startswith("upsample") or not _MULTIPLIES.fullmatch(name)):
            return False
        if is_own and is_composite(operator) and not effects_of(operator).writes:
            return True
        self.uncounted[operator_name(node)] = _REASON
        return False

    def _looked_at(self, node: Node, casts: Sequence[Any] | None) -> tuple[Product, ...]:
        args, kwargs = values_of(node)
        mode = mode_of(tensors_in((args, kwargs)))
        if mode is None:
            return ()
        environment = mode.shape_env
        with nullcontext() if environment is None else without_new_guards(environment):
            return self._run(mode, node, args, kwargs, casts)

    def _run(
        self, mode: FakeTensorMode, node: Node, args: Any, kwargs: Any, casts: Sequence[Any] | None
    ) -> tuple[Product, ...]:
        result = node.meta.get("val")
        found, reason = run_on_fakes(
            lambda: call_products(mode, node.target, args, kwargs, result),
            lambda made: not _has_lost_symbols(made, result),
            casts,
        )
        if not found:
            self.uncounted[operator_name(node)] = _REASON if found is not None else reason
        return found or ()


def _has_lost_symbols(found: Sequence[Product], result: Any) -> bool:
    """Return whether a result has symbolic sizes but its FLOP count is a constant."""
    is_symbolic = any(isinstance(tensor.numel(), torch.SymInt) for tensor in tensors_in(result))
    return is_symbolic and any(isinstance(p.flops, int) and p.flops > 0 for p in found)


_Frame = dict[Node, Value]
"""The sources of each node's value in one run of a graph. Nodes without sources are omitted."""


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
            # Skip the second iteration of a loop.
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
        """Return the bytes that a node reads, by storage. Nodes that only pass on elements read nothing."""
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
        """Return the frame of a node's graph; create it on first use, with the sources of the inputs."""
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
    """Return the sources of the result that a `getitem` node selects."""
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
    regions = (caller.node for caller in _callers(visit) if operator_name(caller.node) == AUTOCAST)
    return next((node.args[:4] for node in regions), None)


def _is_sure(visit: Visit) -> bool:
    return all(operator_name(caller.node) in REGIONS for caller in _callers(visit))


def _branch(visit: Visit) -> tuple[int, str] | None:
    found = None
    inner = visit
    for caller in _callers(visit):
        if operator_name(caller.node) == BRANCH:
            found = caller.index, inner.graph
        inner = caller
    return found
