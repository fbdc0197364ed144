"""Find all parts of a program that ExecuTorch cannot run (FE801), instead of only the first one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.symbolic_numbers import expression_of, finite_bound, has_unbacked_symbols
from fakexport.error import type_and_line
from fakexport.exporting.program import module_path, source_span, span_of_trace, target_name, user_inputs
from fakexport.report.diagnose import labels_at
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix, Span

from ..signature import InputTensor
from ..unsupported import finding_at, operator_finding

# Control flow that ExecuTorch 1.5 supports, and its own operator that calls a delegate backend.
_RUNNABLE_HIGHER_ORDER = frozenset({"cond", "map_impl", "scan", "executorch_call_delegate"})
# The number of dimensions that a kernel supports. A call with zeros finds what other kernels reject, but a
# program with large weights is not called, and some programs cannot be called with zeros.
_RANKS: Mapping[str, tuple[int, ...]] = {"aten::convolution": (3, 4)}
_TRACE = re.compile(r"While executing %?(?P<node>\w+)(?P<rest>.*)", re.DOTALL)


def unbounded_inputs(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Yield a finding for each symbol in an input's size that has no upper bound.

    ExecuTorch plans memory for the maximum sizes. Without a bound, it uses the size in the example inputs as
    the maximum.
    """
    places: dict[Any, list[str]] = {}
    for _, node in user_inputs(program):
        value = node.meta.get("val")
        for index, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            symbols: Set[Any] = set() if isinstance(size, int) else expression_of(size).free_symbols
            for symbol in symbols:
                if finite_bound(program.range_constraints[symbol].upper) is None:
                    places.setdefault(symbol, []).append(f"{node.name}.{index}")
    for found in places.values():
        where = ", ".join(found)
        yield rule("FE801").diagnostic(
            notes=(
                f"the size {where} has no upper bound, but ExecuTorch plans all memory before a call; "
                "without a bound, it would use the example's size as the limit",
            ),
            fix=Fix(f"export it with a bound: `--dynamic {found[0]}=1..64`"),
            fault="inputs",
        )


def short_plans(
    inputs: Mapping[int, InputTensor], planned: Mapping[int, tuple[int, ...]]
) -> Iterator[Diagnostic]:
    """Yield a finding for each input that needs more memory than ExecuTorch planned."""
    for index, tensor in inputs.items():
        room = planned[index]
        wanted = [size.plus if size.symbol is None else size.upper for size in tensor.shape]
        if any(most is not None and most > size for most, size in zip(wanted, room, strict=True)):
            yield rule("FE801").diagnostic(
                notes=(
                    f"ExecuTorch planned memory for {tensor.name} of shape {list(room)}, but the "
                    f"program accepts up to {wanted}",
                ),
                fix=Fix("export the program with `fakexport export`, and compile the archive"),
            )


def findings_of_graph(graph_module: GraphModule, kernels: Set[str]) -> tuple[Diagnostic, ...]:
    """Return a finding for each unsupported operator and each unbounded size of a lowered program."""
    operators: dict[tuple[str, str], list[Node]] = {}
    origins: dict[str, Node] = {}
    unbounded: dict[str, list[Node]] = {}
    for module in graph_module.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.nodes:
            _note_origins(node, origins)
            if node.op != "call_function":
                continue
            if reason := _unrunnable(node.target, kernels) or _unsupported_rank(node):
                operators.setdefault((edge_name(node.target), reason), []).append(node)
            for symbol in _unbounded_symbols(node):
                unbounded.setdefault(symbol, []).append(node)
    unrunnable = {node for nodes in operators.values() for node in nodes}
    return (
        *(_operator_finding(name, reason, nodes) for (name, reason), nodes in operators.items()),
        *(
            _size_finding(origins[symbol], nodes)
            for symbol, nodes in unbounded.items()
            if origins[symbol] not in unrunnable
        ),
    )


def calls_outside_of_backend(graph_module: GraphModule) -> tuple[Node, ...]:
    """Return the calls in a lowered graph that compute tensors and are in no part of a backend."""
    return tuple(
        node
        for module in graph_module.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
        and hasattr(node.target, "_schema")
        and any(isinstance(value, torch.Tensor) for value in tree_leaves(node.meta.get("val")))
    )


def failed_instruction(graph_module: GraphModule, index: int, said: str) -> Diagnostic | None:
    """Return the finding for a kernel that failed in a call of the program; None if its node is unknown."""
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node.meta.get("debug_handle") == index:
            reason = "has a kernel that rejects its arguments in this program"
            return _operator_finding(target_name(node.target), reason, [node], said)
    return None


def lowering_failure(program: ExportedProgram, error: Exception) -> Diagnostic:
    """Return the finding for an error during lowering, at the node that the error mentions, if any."""
    text = str(error)
    said = _TRACE.search(text)
    span: Span | None = None
    node = None
    if said is not None:
        node = next((n for n in program.graph.nodes if n.name == said["node"]), None)
        span = span_of_trace(said["rest"]) or (None if node is None else source_span(node))
    return rule("FE801").diagnostic(
        labels=labels_at(span, "the program cannot be lowered here"),
        notes=(f"ExecuTorch: {type_and_line(error)}",),
        node=None if node is None else node.name,
        module_path=None if node is None else module_path(node) or None,
    )


def _unrunnable(target: Any, kernels: Set[str]) -> str | None:
    """Return why ExecuTorch cannot run an operator; None if it can, or if a later step checks it."""
    from executorch.exir.dialects.edge._ops import EdgeOpOverload

    if getattr(target, "namespace", None) == "higher_order":
        return (
            None
            if target.name() in _RUNNABLE_HIGHER_ORDER
            else "is a higher-order operator that ExecuTorch does not support"
        )
    if not isinstance(target, EdgeOpOverload) or target.namespace == "executorch_prim":
        return None
    schema = target._schema
    if _kernel_name(schema) in kernels:
        return None  # The operator writes in place, or returns a number.
    try:
        out = target.to_out_variant()
    except RuntimeError:
        return "has no out variant, which ExecuTorch needs to write into preplanned memory"
    if _kernel_name(out._schema) in kernels:
        return None
    return f"has no kernel in the installed ExecuTorch: {_kernel_name(out._schema)}"


def _unsupported_rank(node: Node) -> str | None:
    """Return why the kernel of a call rejects its first argument, if that follows from its rank."""
    ranks = _RANKS.get(getattr(getattr(node.target, "_schema", None), "name", ""))
    value = node.args[0].meta.get("val") if node.args and isinstance(node.args[0], Node) else None
    if ranks is None or not isinstance(value, torch.Tensor) or value.dim() in ranks:
        return None
    return f"has a kernel for {' or '.join(map(str, ranks))} dimensions, but the argument has {value.dim()}"


def _kernel_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def edge_name(target: Any) -> str:
    """Return the name of an operator, without ExecuTorch's wrapper."""
    return target_name(getattr(target, "_op", target))


def _note_origins(node: Node, origins: dict[str, Node]) -> None:
    """Map each unbacked symbol to the first node whose value contains it."""
    for value in tree_leaves(node.meta.get("val")):
        numbers = value.shape if isinstance(value, torch.Tensor) else (value,)
        for number in numbers:
            if isinstance(number, torch.SymInt) and has_unbacked_symbols(number):
                for symbol in expression_of(number).free_symbols:
                    origins.setdefault(str(symbol), node)


def _unbounded_symbols(node: Node) -> Iterator[str]:
    """Yield the unbacked symbols without an upper bound in the shapes of a node's results."""
    from executorch.exir.passes.sym_shape_eval_pass import upper_bound_shape_inference_table
    from executorch.exir.sym_util import eval_upper_bound

    if node.target in upper_bound_shape_inference_table:
        return  # ExecuTorch knows that the result is at most as large as the argument.
    for value in tree_leaves(node.meta.get("val")):
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if not isinstance(size, torch.SymInt) or not has_unbacked_symbols(size):
                continue
            try:
                eval_upper_bound(size)
            except RuntimeError:
                yield from map(str, expression_of(size).free_symbols)


def _operator_finding(name: str, reason: str, nodes: list[Node], said: str | None = None) -> Diagnostic:
    return operator_finding(
        "FE801",
        nodes,
        name,
        reason,
        (f"{name} at node {nodes[0].name} {reason}", *((said,) if said else ())),
        "use operators that ExecuTorch supports, or move the computation out of the model",
        f"give {name} an out variant, and register its kernel with ExecuTorch's runtime",
    )


def _size_finding(origin: Node, nodes: list[Node]) -> Diagnostic:
    name = edge_name(origin.target)
    return finding_at(
        "FE801",
        origin,
        f"{name} returns a data-dependent size (unbacked SymInt) without an upper bound",
        notes=(
            f"{edge_name(nodes[0].target)} at node {nodes[0].name} needs memory of that size, but "
            "ExecuTorch plans all memory before a call",
        ),
        fix=Fix("bound the size where it is read: `n = x.item(); torch._check(n <= 64)`"),
        count=len(nodes),
    )
