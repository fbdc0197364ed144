"""Propagate the layouts of sharded weights through a rank's program, and reject programs with wrong results.

A model with a wrong plan can often be traced without any shape error, for example if the plan shards a packed
weight like a single weight or omits an all-reduce. Here, each tensor that depends on a sharded weight has a
layout, and each operator has a rule for the layout of its results. Operators without a rule are rejected, so
only verified programs are exported.

The same code is also traced with the sizes of the unsharded model. Each node is compared with its
counterpart. Its shape must match its layout, and its numbers must be equal. Sizes and bounds may differ if a
rule shows that the node then computes a shard of the model's result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.program_assembly import add_guards, guards_code
from fakexport.exporting.program import module_path, operator_name, output_names, source_span
from fakexport.files.documents import ParallelRecord

from .call import Call, Results, sizes_of
from .counterparts import (
    Counterparts,
    OtherNode,
    graph_of,
    is_copy,
    is_read_from_data,
    is_same_shape,
    original,
)
from .layout import Fault, Layout, NumberFault, Placement, Shard, ShardedDim, ShardingChangesResult
from .own_rows import own_rows
from .product_rules import PRODUCT_RULES
from .shape_rules import SHAPE_RULES, SIZE_ARGUMENTS, expanded_whole, sliced
from .value_rules import VALUE_RULES, elementwise, exchanged

_RULES: Mapping[str, Callable[[Call], Results]] = {**SHAPE_RULES, **PRODUCT_RULES, **VALUE_RULES}
_FILLS = frozenset({"zeros", "ones", "full", "empty"})
_MIXING = frozenset({"cat", "concat", "concatenate", "stack", "pad", "constant_pad_nd", "view_as_complex"})
_SLICES = frozenset({"slice", "narrow"})
_COPIES = frozenset(
    {"clone", "contiguous", "to", "_to_copy", "type_as", "dropout", "float", "half", "bfloat16"}
)
_REGIONS = frozenset({"wrap_with_set_grad_enabled", "wrap_with_autocast"})
_DIVIDED = "moe_identity_expert"
_OWN_EXPERTS = "grouped_gemm"
_DISPATCHED = "ep_dispatch_experts"


def check_rank_layouts(program: ExportedProgram, whole: ExportedProgram, record: ParallelRecord) -> None:
    """Reject a program that does not compute a rank's share of the model's result.

    This also adds the shape guards of the unsharded model to the program.

    Args:
        program: The program of one rank.
        whole: The program of the same code with unsharded weights (`Place.has_whole`).
        record: The shards of the rank's weights, and the parallel plan.
    Raises:
        ShardingChangesResult: a node cannot be verified.
    """
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    layouts: dict[Node, Results] = {}
    for node in program.graph.find_nodes(op="placeholder"):
        if (found := _of_weight(names.get(node.name, ""), record)) is not None:
            layouts[node] = found
    names_out, propagation = output_names(program), _Propagation(record, whole.graph_module)
    caches = _of_caches(program, propagation, layouts)
    returned = propagation.through(program.graph_module, {**layouts, **caches})
    kept = [layout for name, layout in zip(names_out, returned, strict=True) if _is_cache(name)]
    if caches and kept != [*caches.values()]:
        raise ShardingChangesResult("the returned cache is not sharded like the input cache", None)
    _check_ranges(program, whole)
    add_guards(program, guards_code(whole))
    for name, layout in zip(names_out, returned, strict=True):
        if layout in (Placement.PARTIAL, Placement.OWN_ROWS):
            raise ShardingChangesResult(
                f"the output {name} is a partial sum of one rank: no tensor-parallel style adds it up over "
                "the ranks",
                None,
            )
        if isinstance(layout, Shard) and not _is_cache(name):
            of = f"{layout.part.local} of {layout.part.size}"
            raise ShardingChangesResult(
                f"the output {name} is a shard of one rank ({of}): no tensor-parallel style gathers it", None
            )


def _check_ranges(program: ExportedProgram, whole: ExportedProgram) -> None:
    """Require that a rank only accepts input sizes that the unsharded model accepts."""
    ranges = {str(symbol): each for symbol, each in whole.range_constraints.items()}
    for symbol, mine in program.range_constraints.items():
        theirs = ranges.get(str(symbol))
        if theirs is None or mine.lower < theirs.lower or mine.upper > theirs.upper:
            said = f"a rank accepts sizes in {mine}, but the unsharded model accepts sizes in {theirs}"
            raise ShardingChangesResult(f"{said}: a shape guard depends on the size of a shard", None)


def _of_caches(
    program: ExportedProgram, propagation: _Propagation, layouts: Mapping[Node, Results]
) -> dict[Node, Layout]:
    """Return the layout of each input cache. It is equal to the layout of the cache that a call returns.

    The input cache is the result of an earlier call on the same rank. A first pass assumes that the input
    cache matches any shard, and finds the layout of the returned cache. A second pass uses this layout.
    """
    inputs = program.graph_signature.user_inputs
    caches = [node for node in program.graph.find_nodes(op="placeholder") if node.name in inputs]
    caches = [node for node in caches if _is_cache(node.name)]
    if not caches:
        return {}
    returned = propagation.through(program.graph_module, {**layouts, **dict.fromkeys(caches, Placement.FILL)})
    kept = [at for name, at in zip(output_names(program), returned, strict=True) if _is_cache(name)]
    return dict(zip(caches, kept, strict=True)) if len(kept) == len(caches) else {}


def _is_cache(name: str) -> bool:
    """Return whether an input or output is a cache of the rank's own heads, which stays on the rank."""
    return "past_key_values" in name


def _of_weight(name: str, record: ParallelRecord) -> Layout | None:
    shard = record.shards.get(name)
    if shard is None:
        return None
    if record.styles.get(name) == _OWN_EXPERTS:
        return Placement.OWN_ROWS
    return Shard(shard.dim, ShardedDim(shard.shape[shard.dim], shard.ranges))


class _Propagation:
    def __init__(self, record: ParallelRecord, whole: GraphModule) -> None:
        self._record = record
        self._whole = whole
        self._counterparts = Counterparts(record)
        self._dispatched = [name for name, style in record.styles.items() if style == _DISPATCHED]

    def through(
        self, owner: GraphModule, layouts: dict[Node, Results], whole: GraphModule | None = None
    ) -> list[Layout]:
        """Assign a layout to every node of a graph, and return the layouts of the graph's results."""
        whole = whole or self._whole
        try:
            self._counterparts.pair(owner, whole)
        except OtherNode as fault:
            raise self._refusal(fault, fault.node or owner.graph.output_node(), layouts) from fault
        for node in owner.graph.nodes:
            if node not in self._counterparts.nodes:
                continue
            if is_copy(node):
                layouts[node] = layouts.get(original(node), Placement.REPLICATE)
                continue
            try:
                made = self._made(owner, whole, node, layouts) if node.op == "call_function" else None
                if made is not None and made is not Placement.REPLICATE:
                    layouts[node] = made
                self._counterparts.expect_shapes(node, layouts.get(node, Placement.REPLICATE))
                if made is None:
                    self._counterparts.expect_numbers(node)
            except Fault as fault:
                raise self._refusal(fault, node, layouts) from fault
        return [self._of(layouts, leaf) for leaf in tree_leaves(owner.graph.output_node().args[0])]

    def _refusal(self, fault: Fault, node: Node, layouts: Mapping[Node, Results]) -> ShardingChangesResult:
        where = module_path(node) or "the model itself"
        is_number = isinstance(fault, NumberFault)
        size = None if is_number else self._part_bytes(node, layouts)
        return ShardingChangesResult(f"{where} {fault}", source_span(node), size, is_number=is_number)

    @staticmethod
    def _part_bytes(node: Node, layouts: Mapping[Node, Results]) -> int | None:
        for source in node.all_input_nodes:
            value = source.meta.get("val")
            if isinstance(layouts.get(source), Shard) and isinstance(value, torch.Tensor):
                return prod(sizes_of(value)) * value.itemsize
        return None

    @staticmethod
    def _of(layouts: Mapping[Node, Results], leaf: object) -> Layout:
        found = layouts.get(leaf, Placement.REPLICATE) if isinstance(leaf, Node) else Placement.REPLICATE
        return Placement.REPLICATE if isinstance(found, list) else found

    def _made(
        self, owner: GraphModule, whole: GraphModule, node: Node, layouts: dict[Node, Results]
    ) -> Results:
        name = operator_name(node)
        short = name.rpartition(".")[0] if name.count(".") > 1 else name
        kind = short.rpartition(".")[2]
        if name == "operator.getitem":
            origin = node.args[0]
            held = layouts[origin] if isinstance(origin, Node) and origin in layouts else Placement.REPLICATE
            self._counterparts.expect_numbers(node)
            return held[int(str(node.args[1]))] if isinstance(held, list) else held
        is_written = kind.endswith("_") and not kind.endswith("__")
        short, kind = (short[:-1], kind[:-1]) if is_written else (short, kind)
        call = Call.of(node, self._counterparts.nodes[node], short, layouts, self._record.ranks)
        made = self._of_call(owner, whole, call, kind, layouts)
        self._counterparts.expect_numbers(node, call.compared)
        if is_written and not isinstance(made, list):
            self._write(call, made, layouts)
        return made

    def _of_call(
        self,
        owner: GraphModule,
        whole: GraphModule,
        call: Call,
        kind: str,
        layouts: dict[Node, Results],
    ) -> Results:
        node = call.node
        given = [layouts[source] for source in node.all_input_nodes if source in layouts]
        if kind in SHAPE_RULES:
            call.compared.update(SIZE_ARGUMENTS)
        if kind.removeprefix("new_").removesuffix("_like") in _FILLS:
            call.compared.add("size")
            return Placement.FILL
        if call.name.startswith("_c10d_functional."):
            return exchanged(call)
        if self._is_divided(node, kind):
            return Placement.PARTIAL
        if self._is_of_own_experts(node, given):
            experts = self._experts(module_path(node))
            return own_rows(call, kind, experts, self._counterparts, layouts)
        if any(graph_of(owner, argument) for argument in node.args):
            return self._graphs(owner, whole, node, layouts)
        if is_read_from_data(node) and (set(map(str, given)) - {str(Placement.FILL)}):
            raise Fault(f"calls {call.name}, which reads a number from a shard or a partial sum")
        if not _has_results(node):
            return Placement.REPLICATE
        return self._ruled(call, kind)

    def _ruled(self, call: Call, kind: str) -> Results:
        operands = list(call.operands())
        if any(operand.layout is Placement.PARTS for operand in operands):
            if kind not in SHAPE_RULES:
                raise Fault("computes with the shards of all ranks before they are combined")
            is_whole = is_same_shape(call.node.meta["val"], call.whole.meta["val"])
            return Placement.REPLICATE if is_whole else Placement.PARTS
        is_each = kind not in _MIXING and (kind in SHAPE_RULES or _is_elementwise(call))
        if all(operand.layout is Placement.FILL for operand in operands) and operands and is_each:
            return sliced(call) if kind in _SLICES else Placement.FILL
        if not is_each:
            for operand in operands:
                if operand.layout is Placement.FILL:  # The shape may affect the result, so it must match.
                    self._counterparts.expect_shapes(operand.node, Placement.REPLICATE)
        if all(operand.layout in (Placement.REPLICATE, Placement.FILL) for operand in operands):
            if kind == "expand":
                return expanded_whole(call, self._record.rank)
            return sliced(call) if kind in _SLICES else Placement.REPLICATE
        if kind in ("max", "min") and len(operands) > 1:
            return elementwise(call)
        if (rule := _RULES.get(kind)) is not None:
            return rule(call)
        if _is_elementwise(call):
            return elementwise(call)
        raise Fault(f"calls {call.name}, which has no sharding rule, on sharded features")

    def _is_of_own_experts(self, node: Node, given: Sequence[Results]) -> bool:
        """Return whether a node uses experts, or rows of the vocabulary, that only this rank has.

        The index of the expert that is chosen for a token is an integer tensor. Everything that is computed
        from this tensor is specific to the rank.
        """
        if Placement.OWN_ROWS in given:
            return True
        path, value = module_path(node), node.meta.get("val")
        is_inside = any(path == name or path.startswith(f"{name}.") for name in self._dispatched)
        is_integer = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
        return is_inside and is_integer

    def _experts(self, path: str) -> tuple[int, int] | None:
        for name, shard in self._record.shards.items():
            owner = next((each for each in self._dispatched if name.startswith(f"{each}.")), None)
            if owner is not None and (path == owner or path.startswith(f"{owner}.")):
                return ShardedDim(shard.shape[shard.dim], shard.ranges).local, shard.shape[shard.dim]
        return None

    def _graphs(
        self, owner: GraphModule, whole: GraphModule, node: Node, layouts: dict[Node, Results]
    ) -> Results:
        """Return the layouts of a higher-order operator's results, derived from its subgraphs."""
        kind = operator_name(node).rpartition(".")[2]
        operands = list(node.args)
        graphs = [(at, graph) for at, held in enumerate(operands) if (graph := graph_of(owner, held))]
        others = [graph_of(whole, held) for held in self._counterparts.nodes[node].args]
        is_region = kind in _REGIONS
        if not is_region and any(source in layouts for source in node.all_input_nodes):
            raise Fault(f"calls {kind}, which has no sharding rule, on sharded features")
        returned: list[Layout] = []
        for at, graph in graphs:
            inner = {
                placeholder: layouts[operand]
                for placeholder, operand in zip(
                    graph.graph.find_nodes(op="placeholder"), operands[at + 1 :], strict=False
                )
                if is_region and isinstance(operand, Node) and operand in layouts
            }
            returned = self.through(graph, inner, others[at])
            if not is_region and set(returned) - {Placement.REPLICATE, Placement.FILL}:
                raise Fault(f"computes sharded features in {kind}, which has no sharding rule")
        return [*returned] if is_region else Placement.REPLICATE

    def _is_divided(self, node: Node, kind: str) -> bool:
        """Return whether a node divides by the number of ranks before the sum over ranks, as planned."""
        path, ranks = module_path(node), self._record.ranks
        return kind == "div" and self._record.styles.get(path) == _DIVIDED and node.args[1:] == (ranks,)

    def _write(self, call: Call, made: Layout, layouts: dict[Node, Results]) -> None:
        """Update the layouts of a tensor that is written in place and of the tensors that it is a view of."""
        target = call.first.node
        if made is Placement.FILL and _view_of(target) is not None:
            made = Placement.REPLICATE  # Elements outside of the view have different values.
        elif made == call.first.layout:
            return
        while True:
            if layouts.get(target, Placement.REPLICATE) not in (Placement.FILL, made):
                raise Fault("writes a shard into a tensor that every rank has in full")
            layouts[target] = made
            self._counterparts.expect_shapes(target, made)
            source = _view_of(target)
            if source is None:
                return
            kind, dim = operator_name(target).split(".")[1], 0
            if isinstance(made, Shard):
                if kind not in ("slice", "narrow", "select"):
                    raise Fault("writes a shard into a view of another tensor")
                dim = int(str(target.args[1])) % source.meta["val"].ndim
                if kind == "select":
                    made = Shard(made.dim + (dim <= made.dim), made.part)
                elif dim == made.dim:
                    raise Fault("writes a shard into a tensor that every rank has in full")
            target = source


def _view_of(node: Node) -> Node | None:
    kind = operator_name(node).split(".")[1] if node.op == "call_function" else ""
    is_view = kind in SHAPE_RULES and kind not in _COPIES
    return node.args[0] if is_view and isinstance(node.args[0], Node) else None


def _is_elementwise(call: Call) -> bool:
    return torch.Tag.pointwise in getattr(call.node.target, "tags", ()) or call.name == "aten.copy"


def _has_results(node: Node) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(node.meta.get("val")))
