"""Follow sharded weights through the program of a rank, and refuse what the whole model does not compute.

A plan that shards a packed weight as one, or leaves out an all-reduce, traces: no shape shows that it is
wrong. Here each tensor that depends on a part of a weight has a layout, and each operator a rule for what it
makes of it. An operator without a rule is refused: what a program computes is either shown or not exported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fakexport._torch.pytree import tree_leaves
from fakexport.diagnostics import Span
from fakexport.documents import ParallelRecord
from fakexport.error import FakexportError
from fakexport.program import attribute, module_path, operator_name, output_names, source_span

from .call import Call, Results, sizes_of
from .layout import Common, Cut, Fault, Layout, Part
from .product_rules import PRODUCT_RULES
from .shape_rules import SHAPE_RULES
from .value_rules import VALUE_RULES, elementwise, exchanged

_RULES: Mapping[str, Callable[[Call], Results]] = {**SHAPE_RULES, **PRODUCT_RULES, **VALUE_RULES}
_FILLS = frozenset({"zeros", "ones", "full", "empty"})
_REGIONS = frozenset({"wrap_with_set_grad_enabled", "wrap_with_autocast"})
_DIVIDED = "moe_identity_expert"
_OWN_EXPERTS = "grouped_gemm"


class ShardingChangesResult(FakexportError, ValueError):
    """The programs of the ranks would not compute together what the model computes, or it is not known.

    Args:
        message: One line.
        span: The line of the model.
        part_bytes: Bytes of the part that the rank has, where a gather would help; at the example's sizes.
    """

    def __init__(self, message: str, span: Span | None, part_bytes: int | None = None) -> None:
        super().__init__(message)
        self.span = span
        self.part_bytes = part_bytes


def check_rank_layouts(program: ExportedProgram, record: ParallelRecord) -> None:
    """Refuse a program that does not compute a rank's share of what the model computes.

    Args:
        program: Of one rank.
        record: What the rank has of each weight, and the plan.
    Raises:
        ShardingChangesResult: There is a node for which this cannot be shown.
    """
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    layouts: dict[Node, Results] = {}
    for node in program.graph.find_nodes(op="placeholder"):
        if (found := _of_weight(names.get(node.name, ""), record)) is not None:
            layouts[node] = found
    names_out, propagation = output_names(program), _Propagation(record)
    caches = _of_caches(program, propagation, layouts)
    returned = propagation.through(program.graph_module, {**layouts, **caches})
    kept = [layout for name, layout in zip(names_out, returned, strict=True) if _is_cache(name)]
    if caches and kept != [*caches.values()]:
        raise ShardingChangesResult("the cache that is returned is not sharded as the one that is read", None)
    for name, layout in zip(names_out, returned, strict=True):
        if layout in (Common.SUM, Common.OWN_ROWS):
            raise ShardingChangesResult(f"{name} is one rank's summand: no style adds up the ranks", None)
        if isinstance(layout, Cut) and not _is_cache(name):
            of = f"{layout.part.local} of {layout.part.size}"
            raise ShardingChangesResult(f"{name} is one rank's part ({of}): no style gathers it", None)


def _of_caches(
    program: ExportedProgram, propagation: _Propagation, layouts: Mapping[Node, Results]
) -> dict[Node, Layout]:
    """Return the layout of each cache that is an input: that of the one which is returned in its place.

    An earlier call of the same rank wrote it. It is taken first for what may be a part of anything, and what
    is returned then is the layout with which the program is followed again.
    """
    inputs = program.graph_signature.user_inputs
    caches = [node for node in program.graph.find_nodes(op="placeholder") if node.name in inputs]
    caches = [node for node in caches if _is_cache(node.name)]
    if not caches:
        return {}
    returned = propagation.through(program.graph_module, {**layouts, **dict.fromkeys(caches, Common.FILL)})
    kept = [at for name, at in zip(output_names(program), returned, strict=True) if _is_cache(name)]
    return dict(zip(caches, kept, strict=True)) if len(kept) == len(caches) else {}


def _is_cache(name: str) -> bool:
    """Return whether an output is the keys or values of the rank's own heads, which stay where they are."""
    return "past_key_values" in name


def _of_weight(name: str, record: ParallelRecord) -> Layout | None:
    shard = record.shards.get(name)
    if shard is None:
        return None
    if record.styles.get(name) == _OWN_EXPERTS:
        return Common.OWN_ROWS
    return Cut(shard.dim, Part(shard.shape[shard.dim], shard.ranges))


class _Propagation:
    def __init__(self, record: ParallelRecord) -> None:
        self._record = record

    def through(self, owner: GraphModule, layouts: dict[Node, Results]) -> list[Layout]:
        """Give every node of a graph a layout; return those of what it returns."""
        for node in owner.graph.nodes:
            if node.op != "call_function":
                continue
            try:
                made = self._made(owner, node, layouts)
            except Fault as fault:
                where = module_path(node) or "the model itself"
                size = self._part_bytes(node, layouts)
                raise ShardingChangesResult(f"{where} {fault}", source_span(node), size) from fault
            if made is not Common.WHOLE:
                layouts[node] = made
        return [self._of(layouts, leaf) for leaf in tree_leaves(owner.graph.output_node().args[0])]

    @staticmethod
    def _part_bytes(node: Node, layouts: Mapping[Node, Results]) -> int | None:
        """Return the bytes of the first tensor that a node is given of which the rank has a part."""
        for source in node.all_input_nodes:
            value = source.meta.get("val")
            if isinstance(layouts.get(source), Cut) and isinstance(value, torch.Tensor):
                return prod(sizes_of(value)) * value.itemsize
        return None

    @staticmethod
    def _of(layouts: Mapping[Node, Results], leaf: object) -> Layout:
        found = layouts.get(leaf, Common.WHOLE) if isinstance(leaf, Node) else Common.WHOLE
        return Common.WHOLE if isinstance(found, list) else found

    def _made(self, owner: GraphModule, node: Node, layouts: dict[Node, Results]) -> Results:
        name = operator_name(node)
        short = name.rpartition(".")[0] if name.count(".") > 1 else name
        kind = short.rpartition(".")[2]
        given = [layouts[source] for source in node.all_input_nodes if source in layouts]
        if name == "operator.getitem":
            held = layouts.get(node.args[0], Common.WHOLE) if isinstance(node.args[0], Node) else Common.WHOLE
            return held[int(str(node.args[1]))] if isinstance(held, list) else held
        if kind.removeprefix("new_").removesuffix("_like") in _FILLS:
            return Common.FILL
        if short.startswith("_c10d_functional."):
            return exchanged(Call.of(node, short, layouts, self._record.ranks))
        if self._is_divided(node, kind):
            return Common.SUM
        if not given:
            return Common.WHOLE
        if kind in _REGIONS or name.rpartition(".")[2] in _REGIONS:
            return self._region(owner, node, layouts)
        if not _has_results(node):
            return Common.WHOLE
        is_written = kind.endswith("_") and not kind.endswith("__")
        short, kind = (short[:-1], kind[:-1]) if is_written else (short, kind)
        call = Call.of(node, short, layouts, self._record.ranks)
        made = Common.OWN_ROWS if Common.OWN_ROWS in given else self._ruled(call, kind)
        if is_written and not isinstance(made, list) and made != call.first.layout:
            _write(call.first.node, made, layouts)
        return made

    def _ruled(self, call: Call, kind: str) -> Results:
        if all(operand.layout in (Common.WHOLE, Common.FILL) for operand in call.operands()):
            is_fill = all(operand.layout is Common.FILL for operand in call.operands())
            return Common.FILL if is_fill and (kind in SHAPE_RULES or _is_elementwise(call)) else Common.WHOLE
        if kind in ("max", "min") and len(list(call.operands())) > 1:
            return elementwise(call)
        if (rule := _RULES.get(kind)) is not None:
            return rule(call)
        if _is_elementwise(call):
            return elementwise(call)
        raise Fault(f"calls {call.name} on a part of the features, without a sharding rule")

    def _is_divided(self, node: Node, kind: str) -> bool:
        """Return whether a node divides by the ranks what is added up later, as a style of the plan says."""
        path, ranks = module_path(node), self._record.ranks
        return kind == "div" and self._record.styles.get(path) == _DIVIDED and node.args[1:] == (ranks,)

    def _region(self, owner: GraphModule, node: Node, layouts: Mapping[Node, Results]) -> Results:
        """Return the layouts of what the graph of a `no_grad` or autocast region returns."""
        at = next(i for i, arg in enumerate(node.args) if isinstance(arg, Node) and arg.op == "get_attr")
        held: Any = node.args[at]
        graph = attribute(owner, str(held.target))
        assert isinstance(graph, GraphModule)
        operands: Sequence[Any] = node.args[at + 1 :]
        inner = {
            placeholder: layouts[operand]
            for placeholder, operand in zip(graph.graph.find_nodes(op="placeholder"), operands, strict=False)
            if operand in layouts
        }
        return [*self.through(graph, inner)]


def _write(target: Node, made: Layout, layouts: dict[Node, Results]) -> None:
    """Give a tensor that is written in place a layout, and that of which it is a slice."""
    while layouts.get(target, Common.WHOLE) in (Common.FILL, made):
        layouts[target] = made
        kind = operator_name(target).split(".")[1] if target.op == "call_function" else ""
        if kind not in ("slice", "narrow", "select"):
            if kind in SHAPE_RULES and kind not in ("clone", "contiguous"):
                break
            return
        source = target.args[0]
        assert isinstance(source, Node)
        dim = int(str(target.args[1])) % source.meta["val"].ndim
        if isinstance(made, Cut) and kind == "select":
            made = Cut(made.dim + (dim <= made.dim), made.part)
        elif isinstance(made, Cut) and dim == made.dim:
            break
        target = source
    raise Fault("writes a rank's part into a tensor that every rank has in full")


def _is_elementwise(call: Call) -> bool:
    return torch.Tag.pointwise in getattr(call.node.target, "tags", ()) or call.name == "aten.copy"


def _has_results(node: Node) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(node.meta.get("val")))
