"""Replace operators that a compiler does not support with compositions of other operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from operator import getitem
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fakexport._torch.emulation.fake_tensors import mode_of
from fakexport._torch.kernels import fbgemm_products
from fakexport._torch.kernels.grouped_products import TRANSFORMERS, composed_product, product_arguments
from fakexport._torch.kernels.mxfp4_products import PACKED, composed_packed_product
from fakexport._torch.operators.operator_schema import argument_values, is_python_operator
from fakexport.exporting.program import copied_graph, derived_program, graph_modules, operator_name


@dataclass(frozen=True)
class Composition:
    """The replacement of a node: a function that computes the same value from the `inputs`."""

    inputs: tuple[Node, ...]
    function: Callable[..., Any]


Compositions = Mapping[str, Callable[[Node], Composition | None]]
"""Operator name -> function that returns the composition for a node, or None to keep the node."""


def grouped_product(node: Node) -> Composition | None:
    """Return the composition for a grouped matrix product, or None if the node can be kept."""
    given = product_arguments(node)
    return None if given is None else Composition(given, composed_product)


def packed_product(node: Node) -> Composition:
    """Return the composition for a grouped matrix product with MXFP4 matrices."""
    return Composition(tuple(node.all_input_nodes), composed_packed_product)


def all_true(node: Node) -> Composition:
    """Return the composition for torch's check that a tensor is true everywhere."""
    return Composition(tuple(node.all_input_nodes), torch.all)


def kept_size(node: Node) -> Composition | None:
    """Return a copy for `squeeze` of a size other than 1, which torch keeps; otherwise None."""
    (source,) = node.all_input_nodes
    is_kept = node.meta["val"].dim() == source.meta["val"].dim()
    return Composition((source,), torch.clone) if is_kept else None


def _of_fbgemm(function: Callable[..., Any], names: tuple[str, ...], node: Node) -> Composition | None:
    """Return the composition for an FBGEMM operator, or None if FBGEMM itself is installed."""
    target: Any = node.target
    if not is_python_operator(target.name().partition(".")[0]):
        return None
    values = argument_values(target, node.args, node.kwargs)
    given = tuple(values[name] for name in names if values[name] is not None)
    return Composition(given, lambda *tensors: function(*tensors))


IN_PYTHON: Compositions = MappingProxyType(
    {
        TRANSFORMERS: grouped_product,
        PACKED: packed_product,
        # The operators in `fbgemm_fp8` layers. Their compositions compute in float32.
        fbgemm_products.QUANTIZED: partial(
            _of_fbgemm, fbgemm_products.composed_quantization, ("input", "scale_ub")
        ),
        fbgemm_products.PRODUCT: partial(
            _of_fbgemm, fbgemm_products.composed_rowwise_product, ("XQ", "WQ", "x_scale", "w_scale", "bias")
        ),
    }
)
"""Decompositions of Python operators, for compilers that cannot call them."""


def composed(program: ExportedProgram, compositions: Compositions) -> ExportedProgram:
    """Replace operators with their compositions. A program without such operators is returned unchanged."""
    graphs = [module.graph for module in graph_modules(program.graph_module)]
    called = [node for graph in graphs for node in _calls(graph, compositions)]
    if not any(compositions[operator_name(node)](node) for node in called):
        return program
    changed = copied_graph(program)
    for module in graph_modules(changed):
        for node in _calls(module.graph, compositions):
            # Compute the composition again, because earlier replacements may have changed the node's
            # arguments.
            if made := compositions[operator_name(node)](node):
                _replace(module.graph, node, made)
        module.recompile()
    return derived_program(
        program, state_dict=program.state_dict, constants=program.constants, graph_module=changed
    )


def replaced_operators(program: ExportedProgram, compositions: Compositions) -> dict[str, int]:
    """Return how many calls of each operator `composed` replaces."""
    called = (
        node for each in graph_modules(program.graph_module) for node in _calls(each.graph, compositions)
    )
    return Counter(operator_name(node) for node in called if compositions[operator_name(node)](node))


def _calls(graph: Graph, compositions: Compositions) -> list[Node]:
    called = (node for node in graph.nodes if node.op == "call_function")
    return [node for node in called if operator_name(node) in compositions]


def _replace(graph: Graph, node: Node, made: Composition) -> None:
    """Trace a composition and replace the node with the traced nodes, which get its source line."""
    values = [source.meta["val"] for source in made.inputs]
    with torch.no_grad(), mode_of(values) or nullcontext():
        traced = make_fx(made.function)(*values).graph
    copies = dict(zip(traced.find_nodes(op="placeholder"), made.inputs, strict=True))
    for old in traced.nodes:
        if old.op == "call_function":
            with graph.inserting_before(node):
                copies[old] = graph.node_copy(old, lambda source: copies[source])
            copies[old].meta = {**node.meta, "val": old.meta["val"]}
    results: Any = traced.output_node().args[0]
    if isinstance(results, Node):
        _take_place(graph, node, copies[results])
    else:
        for user in list(node.users):
            assert user.target is getitem
            _take_place(graph, user, copies[results[user.args[1]]])
        graph.erase_node(node)


def _take_place(graph: Graph, old: Node, new: Node) -> None:
    """Replace a node. The new one gets its name, by which the signature of a program knows its outputs."""
    old.replace_all_uses_with(new)
    graph.erase_node(old)
    new.name = old.name
