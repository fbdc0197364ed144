"""Execute a program's nodes on storages instead of tensors, and record when each storage is live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Node

from fakexport._torch.costs.operator_memory import Allocation, CallMemory, tensors_in
from fakexport._torch.operators.operator_effects import effects_of
from fakexport._torch.operators.operator_registry import OpOverload
from fakexport._torch.operators.operator_schema import argument_names
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.tracing.symbolic_numbers import expression_of, hint_of, noted_expression_of
from fakexport.exporting.program import (
    Visit,
    attribute,
    input_nodes,
    operator_name,
    output_names,
    plain_name,
    subgraphs_of,
)
from fakexport.planning.memory.held_memory import held_inputs, held_weights
from fakexport.planning.memory.input_dims import is_cache
from fakexport.planning.memory.node_memory import NodeMemory, allocation, values_of
from fakexport.planning.memory.storage import Kind, Size, Storage

Places = Any
"""A node's value with each tensor replaced by the index of its storage, and any other leaf by None."""

# Higher-order operators that run their only subgraph once and return its result.
REGIONS = frozenset(
    f"higher_order.{name}"
    for name in ("wrap_with_set_grad_enabled", "wrap_with_autocast", "invoke_subgraph", "wrap",
                 "tag_activation_checkpoint", "hints_wrapper", "wrap_inductor_compiled_regions")
)  # fmt: skip
AUTOCAST = "higher_order.wrap_with_autocast"
BRANCH = "higher_order.cond"
_LOOP = "higher_order.while_loop"


class KnownSizes:
    """Convert SymInts to ints or simplified sympy expressions, and cache the results."""

    def __init__(self, simplified: Callable[[Any], Any] = lambda expression: expression) -> None:
        self._simplified = simplified
        self._known: dict[Any, Size] = {}

    def __call__(self, number: Any) -> Size:
        if isinstance(number, int):
            return number
        noted = noted_expression_of(number)
        known = self._known.get(noted)
        if known is None:
            expression = self._simplified(expression_of(number))
            known = self._known[noted] = int(expression) if expression.is_Integer else expression
        return known


class Execution:
    """One execution of a program on storages instead of tensors. `run` fills the lists in the attributes."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._size = KnownSizes(sympy.expand)
        self.storages, self._weights = held_weights(program)
        self._inputs: dict[str, list[int]] = {}
        for name, storages in held_inputs(program, self._size):
            self._inputs[name] = [*range(len(self.storages), len(self.storages) + len(storages))]
            self.storages += storages
        self.held = len(self.storages)
        self.events: list[tuple[int, int]] = []
        self.steps: list[Visit] = []
        self._memory = NodeMemory()
        self._holders: Counter[int] = Counter(dict.fromkeys(range(self.held), 1))
        self._grown: dict[int, int] = {}
        self._written: set[int] = set()
        self.state: list[int] = []
        self.unmodeled: list[tuple[int, str]] = []
        self._left_out: dict[str, None] = {}

    def run(self) -> None:
        """Execute the program once and record all storages and events."""
        given = [self._given(node, spec.target) for spec, node in input_nodes(self._program)]
        returned = self._graph(self._program.graph_module, given, graph="", caller=None)
        self._note_outputs(returned)

    def left_out(self) -> Iterator[str]:
        """Yield a sentence about each operator whose memory is not fully counted."""
        yield from self._left_out
        for operator, reason in self._memory.unread.items():
            yield f"{operator}: its results are counted, but not its temporary memory ({reason})"

    def _given(self, node: Node, target: str | None) -> Places:
        indices = iter(self._inputs.get(node.name, ()))
        if target is not None and target in self._weights:
            return self._weights[target]
        return tree_map(
            lambda leaf: next(indices, None) if isinstance(leaf, torch.Tensor) else None, node.meta.get("val")
        )

    def _graph(
        self, owner: GraphModule, given: Sequence[Places], *, graph: str, caller: Visit | None
    ) -> Places:
        """Execute one graph. The caller keeps the arguments alive, and must release the results."""
        values: dict[Node, Places] = {}
        result: Places = None
        arguments = iter(given)
        dying = _last_uses(owner)
        for node in owner.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(arguments, None)
                continue
            if node.op == "output":
                result = _placed(node.args[0], values)
                self._hold(result)
                break
            visit = Visit(node, owner, len(self.steps), graph, caller)
            self.steps.append(visit)
            values[node] = self._node(visit, values)
            for dead in dying.get(node, ()):
                if dead.op == "call_function":
                    self._release(values.pop(dead))
        for node, places in values.items():
            if node.op == "call_function":
                self._release(places)
        return result

    def _node(self, visit: Visit, values: dict[Node, Places]) -> Places:
        """Return the value of a node, and increment the reference count of each of its storages."""
        node = visit.node
        if node.op == "get_attr":
            return self._attribute(visit)
        if node.op != "call_function":
            return None
        if isinstance(node.target, OpOverload):
            result = self._operator(visit, values)
        elif operator_name(node) == "operator.getitem":
            source, index = node.args
            result = _placed(source, values)
            result = None if result is None else result[index]
        elif subgraphs := list(subgraphs_of(node, visit.owner)):
            return self._call(visit, subgraphs, values)
        else:
            result = self._results(visit)
            if _flat(result):
                self._left_out[f"{operator_name(node)}: only the memory of its results is counted"] = None
        self._hold(result)
        return result

    def _operator(self, visit: Visit, values: dict[Node, Places]) -> Places:
        node = visit.node
        value = node.meta.get("val")
        memory = self._memory.of(node)
        arguments = _flat_tensors((node.args, dict(node.kwargs)), values)
        if effects_of(node.target).writes:
            written = zip(_is_written(node), arguments, strict=True)
            self._written.update(place for is_written, place in written if is_written and place is not None)
        self.unmodeled += [(visit.index, operator) for operator in memory.unknown]
        taken = self._emit(visit, memory)
        homes = [taken[home] if home >= 0 else arguments[~home] for home in memory.outputs]
        if effects_of(node.target).writes:
            given = tensors_in(values_of(node))
            for home, place, result in zip(memory.outputs, homes, tensors_in(value), strict=False):
                if home < 0 and place is not None:
                    self._write(visit, place, given[~home], result)
        places = iter(homes)
        return tree_map(lambda leaf: next(places, None) if isinstance(leaf, torch.Tensor) else None, value)

    def _write(self, visit: Visit, place: int, before: torch.Tensor, after: torch.Tensor) -> None:
        """Replace the memory of a tensor if an operator resizes it, as `resize_` and a small `out=` do.

        The old memory is copied to the new memory, so both exist for a moment.
        """
        if _hinted_bytes(after) <= _hinted_bytes(before):
            return
        taken = allocation(after, operator_name(visit.node))
        (grown,) = self._emit(visit, CallMemory((taken,), (0,), (0,)))
        if place >= self.held:
            self.events.append((visit.index, ~self._memory_of(place)))
        self._grown[place] = grown

    def _memory_of(self, place: int) -> int:
        """Return the storage whose memory a tensor uses now, given the storage that it had first."""
        return self._grown.get(place, place)

    def _emit(self, visit: Visit, memory: CallMemory) -> list[int]:
        """Record the allocations and frees of a call. Return the storage index of each allocation."""
        step = visit.index
        first = len(self.storages)
        results = {home for home in memory.outputs if home >= 0}
        count = len(memory.allocations)
        for index, taken in enumerate(memory.allocations):
            self.storages.append(self._storage(visit, taken, index, is_result=index in results))
        for event in memory.events:
            self.events.append((step, first + event if event >= 0 else ~(first + ~event)))
        return [*range(first, first + count)]

    def _attribute(self, visit: Visit) -> Places:
        found = attribute(visit.owner, str(visit.node.target))
        if not isinstance(found, torch.Tensor):
            return None
        return self._weights.get(str(visit.node.target))

    def _call(
        self, visit: Visit, subgraphs: Sequence[tuple[Node, GraphModule]], values: dict[Node, Places]
    ) -> Places:
        """Execute a higher-order operator's subgraphs one after the other; return the operator's results."""
        name = operator_name(visit.node)
        given = [_placed(operand, values) for operand in operands(visit.node)]
        named = [(f"{visit.graph}.{source.target}".lstrip("."), module) for source, module in subgraphs]
        if name in REGIONS and len(named) == 1:
            # The arguments of an autocast region: device type, dtype, enabled, cache enabled.
            casts = visit.node.args[:4]
            with self._memory.casting(*casts) if name == AUTOCAST else nullcontext():
                return self._graph(named[0][1], given, graph=named[0][0], caller=visit)
        if name not in (BRANCH, _LOOP):
            self._left_out[f"{name}: only one iteration of its body is counted"] = None
        is_asked: Places = None
        for graph, module in named:
            returned = self._graph(module, given, graph=graph, caller=visit)
            if name == _LOOP and module is named[0][1]:
                is_asked = returned  # The loop condition is live while the body runs.
                continue
            if name == _LOOP:
                # From the second iteration on, the previous values are live while new values are computed.
                again = [*returned, *given[len(returned) :]]
                self._release(self._graph(module, again, graph=graph, caller=visit))
            self._release(returned)
        self._release(is_asked)
        result = self._results(visit)
        self._hold(result)
        return result

    def _results(self, visit: Visit) -> Places:
        value = visit.node.meta.get("val")
        name = operator_name(visit.node)
        taken = tuple(allocation(tensor, name) for tensor in tensors_in(value))
        everything = tuple(range(len(taken)))
        places = iter(self._emit(visit, CallMemory(taken, everything, everything)))
        return tree_map(lambda leaf: next(places) if isinstance(leaf, torch.Tensor) else None, value)

    def _hold(self, places: Places) -> None:
        self._holders.update(_flat(places))

    def _release(self, places: Places) -> None:
        for index in _flat(places):
            self._holders[index] -= 1
            if not self._holders[index]:
                self.events.append((len(self.steps) - 1, ~self._memory_of(index)))

    def _storage(self, visit: Visit, taken: Allocation, index: int, *, is_result: bool) -> Storage:
        return Storage(
            name=visit.node.name if index == 0 else f"{visit.node.name}[{index}]",
            kind="activation" if is_result else "temporary",
            device=taken.device,
            bytes=self._size(taken.bytes),
            shape=None if taken.shape is None else tuple(map(self._size, taken.shape)),
            dtype="" if taken.dtype is None else plain_name(taken.dtype),
            operator=taken.operator,
            visit=visit,
        )

    def _note_outputs(self, returned: Places) -> None:
        """Set the kind of storages that are outputs, caches, or inputs that the program writes or returns."""
        specs = self._program.graph_signature.output_specs
        outputs: set[int] = set()
        caches: set[int] = set()
        names = iter(output_names(self._program))
        for place, spec in zip(returned or (), specs, strict=False):
            if spec.kind is OutputKind.USER_OUTPUT:
                own = set(map(self._memory_of, _flat(place)))
                outputs |= own
                caches |= own if is_cache(next(names, "")) else set()
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                self._written.update(self._inputs.get(str(spec.target), ()))
        for index in outputs - set(range(self.held)):
            kind: Kind = "state" if index in caches else "output"
            self.storages[index] = replace(self.storages[index], kind=kind)
        given = {index for name, found in self._inputs.items() if is_cache(name) for index in found}
        for index in (outputs | given | self._written) & set(range(self.held)):
            if self.storages[index].kind == "input":
                self.storages[index] = replace(self.storages[index], kind="state")
        kept = caches | outputs | self._written
        after = {index for index in kept if self.storages[index].kind == "state"}
        self.state = sorted(after or (index for index in given if self.storages[index].kind == "state"))


def _last_uses(owner: GraphModule) -> dict[Node, list[Node]]:
    """Map each node to the values that torch.fx's generated code sets to None after it.

    These are the values whose last use is this node, and the node's own value if nothing uses it.
    """
    last: dict[Node, Node] = {}
    dying: dict[Node, list[Node]] = {}
    for node in reversed(owner.graph.nodes):
        for source in node.all_input_nodes:
            if source not in last:
                last[source] = node
                dying.setdefault(node, []).append(source)
        if not node.users:
            dying.setdefault(node, []).append(node)
    return dying


def _placed(argument: Any, values: dict[Node, Places]) -> Places:
    if isinstance(argument, Node):
        return values.get(argument)
    if isinstance(argument, (list, tuple)):
        return [_placed(item, values) for item in argument]
    if isinstance(argument, dict):
        return {key: _placed(item, values) for key, item in argument.items()}
    return None


def _flat(places: Places) -> list[int]:
    return [leaf for leaf in tree_leaves(places) if isinstance(leaf, int)]


def _flat_tensors(arguments: Any, values: dict[Node, Places]) -> list[int | None]:
    """Return each tensor argument's storage index (None if unknown), in the order of `tensors_in`."""
    found: list[int | None] = []
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, Node):
            count = len(tensors_in(leaf.meta.get("val")))
            places: list[int | None] = [*_flat(values.get(leaf))]
            found += places if len(places) == count else [None] * count
    return found


def _hinted_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that a tensor spans for the example inputs; 0 if a run-time size decides."""
    sizes, strides = map(_hinted, tensor.shape), map(_hinted, tensor.stride())
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return (last + 1) * tensor.itemsize if _hinted(tensor.numel()) else 0


def _hinted(size: int | torch.SymInt) -> int:
    return (hint_of(size) or 0) if isinstance(size, torch.SymInt) else size


def _is_written(node: Node) -> Iterator[bool]:
    """Yield, for each tensor among the arguments, whether the operator writes into it."""
    names = {name for _, name in effects_of(node.target).writes}
    arguments = zip(argument_names(node.target), node.args, strict=False)
    for name, argument in (*arguments, *node.kwargs.items()):
        for leaf in tree_leaves(argument):
            if isinstance(leaf, Node):
                yield from (name in names for _ in tensors_in(leaf.meta.get("val")))


def operands(node: Node) -> list[Any]:
    """Return the operands of a higher-order operator, which are the arguments after its last subgraph."""
    leaves = tree_leaves((node.args, dict(node.kwargs)))
    graphs = (i for i, leaf in enumerate(leaves) if isinstance(leaf, Node) and leaf.op == "get_attr")
    return leaves[max(graphs, default=-1) + 1 :]
