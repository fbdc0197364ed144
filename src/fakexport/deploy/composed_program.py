"""A program whose operators that a compiler does not have are made of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from operator import getitem
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fakexport._torch import fbgemm_products
from fakexport._torch.fake_tensors import mode_of
from fakexport._torch.grouped_products import TRANSFORMERS, composed_product, product_arguments
from fakexport._torch.mxfp4_products import PACKED, composed_packed_product
from fakexport._torch.operator_schema import argument_values, is_python_operator
from fakexport.program import copied_graph, derived_program, graph_modules, operator_name


@dataclass(frozen=True)
class Composition:
    """What a node is made of: a function of some tensors that computes the same as the node."""

    inputs: tuple[Node, ...]
    function: Callable[..., Any]


Compositions = Mapping[str, Callable[[Node], Composition | None]]
"""By operator, `aten._grouped_mm.default`: what a node is made of; None for one that stays as it is."""


def grouped_product(node: Node) -> Composition | None:
    """Return the composition of a product of groups."""
    given = product_arguments(node)
    return None if given is None else Composition(given, composed_product)


def packed_product(node: Node) -> Composition:
    """Return the composition of a product of groups with matrices in MXFP4."""
    return Composition(tuple(node.all_input_nodes), composed_packed_product)


def fbgemm_quantization(node: Node) -> Composition | None:
    """Return the composition of rows quantized to fp8; None where FBGEMM's own operator does it."""
    return _of_fbgemm(node, fbgemm_products.composed_quantization, ("input", "scale_ub"))


def fbgemm_product(node: Node) -> Composition | None:
    """Return the composition of a product of rows in fp8; None where FBGEMM's own operator does it."""
    names = ("XQ", "WQ", "x_scale", "w_scale", "bias")
    return _of_fbgemm(node, fbgemm_products.composed_rowwise_product, names)


def _of_fbgemm(node: Node, function: Callable[..., Any], names: tuple[str, ...]) -> Composition | None:
    target: Any = node.target
    if not is_python_operator(target.name().partition(".")[0]):
        return None
    values = argument_values(target, node.args, node.kwargs)
    given = tuple(values[name] for name in names if values[name] is not None)
    return Composition(given, lambda *tensors: function(*tensors))


OF_FP8: Compositions = MappingProxyType(
    {fbgemm_products.QUANTIZED: fbgemm_quantization, fbgemm_products.PRODUCT: fbgemm_product}
)
"""Layers of `fbgemm_fp8`, which compute in float32."""

IN_PYTHON: Compositions = MappingProxyType({TRANSFORMERS: grouped_product, PACKED: packed_product, **OF_FP8})
"""For a compiler that does not call Python."""


def composed(program: ExportedProgram, compositions: Compositions) -> ExportedProgram:
    """Return the program with some operators made of others; itself if it has none of them."""
    graphs = [module.graph for module in graph_modules(program.graph_module)]
    called = [node for graph in graphs for node in _calls(graph, compositions)]
    if not any(compositions[operator_name(node)](node) for node in called):
        return program
    changed = copied_graph(program)
    for module in graph_modules(changed):
        for node in _calls(module.graph, compositions):
            # Asked now, since what it takes may be another node by now.
            if made := compositions[operator_name(node)](node):
                _replace(module.graph, node, made)
        module.recompile()
    return derived_program(
        program, state_dict=program.state_dict, constants=program.constants, graph_module=changed
    )


def _calls(graph: Graph, compositions: Compositions) -> list[Node]:
    called = (node for node in graph.nodes if node.op == "call_function")
    return [node for node in called if operator_name(node) in compositions]


def _replace(graph: Graph, node: Node, made: Composition) -> None:
    """Put the traced nodes in the place of one, at its line."""
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
        node.replace_all_uses_with(copies[results])
    else:
        for user in list(node.users):
            assert user.target is getitem
            user.replace_all_uses_with(copies[results[user.args[1]]])
            graph.erase_node(user)
    graph.erase_node(node)
