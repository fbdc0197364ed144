"""Replace the tensor wrapper subclasses in a program with the plain tensors inside of them.

`torch.export` represents a wrapper weight as one placeholder, so loading the program requires the wrapper's
class and package. This module flattens wrappers as `run_decompositions` does, with the same names, but does
not change the rest of the graph: `access_subclass_inner_tensor(weight, "qdata")` becomes the placeholder of
`qdata`, and an operator on a whole wrapper is replaced by the operators that the wrapper class runs for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fakexport._torch.emulation.wrapper_subclasses import inner_name, inner_tensors, is_wrapper, rewrapped
from fakexport._torch.operators.operator_registry import HigherOrderOperator
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport.emulation.fake import UnsupportedSubclassError, check_input, is_fake
from fakexport.emulation.history import hand_on_value
from fakexport.error import type_and_line

from .derived_program import derived_program
from .program_copy import copied_graph
from .source_span import source_span
from .walk import input_nodes

_access = torch.ops.export.access_subclass_inner_tensor.default
_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def flattened(program: ExportedProgram) -> ExportedProgram:
    """Return the program with inner tensors instead of wrappers. If it has no wrappers, return it unchanged.

    Args:
        program: The traced program. It is not changed. Its weights can be fake.
    Raises:
        UnsupportedSubclassError: a wrapper is an input or an output, or cannot be flattened.
    """
    held = {**program.state_dict, **program.constants}
    inputs = input_nodes(program)
    if not any(map(is_wrapper, (*held.values(), *(node.meta.get("val") for _, node in inputs)))):
        return program
    for spec, node in inputs:
        tensor = held.get(spec.target or "")
        if is_wrapper(tensor) and not is_wrapper(node.meta.get("val")):
            name = str(spec.target)
            raise UnsupportedSubclassError.of(
                name, tensor, "the graph was loaded from a file that describes this tensor as plain"
            )
    graph_module = copied_graph(program)
    parts = _Parts()
    specs = [
        inner
        for spec, node in input_nodes(program, graph_module.graph)
        for inner in _inputs(spec, node, parts)
    ]
    renamed = _Flattening(graph_module.graph, parts).run()
    outputs = [
        replace(spec, arg=TensorArgument(name=renamed[spec.arg.name])) if spec.arg.name in renamed else spec
        for spec in program.graph_signature.output_specs
    ]
    tied: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    return derived_program(
        program,
        graph_module=graph_module,
        state_dict=_inner_tensors_by_name(program.state_dict, tied),
        constants=_inner_tensors_by_name(program.constants, tied),
        example_inputs=program.example_inputs,
        signature=ExportGraphSignature(specs, outputs),
    )


@dataclass(frozen=True)
class _Wrapped:
    """A wrapper in the graph: its name, its fake value, and the nodes of its inner tensors."""

    name: str
    like: torch.Tensor
    nodes: tuple[Node, ...]


class _Parts(dict[Node, Any]):
    """Map each node to its replacement: a `_Wrapped`, a plain node, a number, or a container of these."""

    def of(self, value: Any) -> Any:
        """Return arguments in which each node is replaced as in this dict. Nodes without a key are kept."""
        return torch.fx.node.map_arg(value, lambda node: self.get(node, node))


def _inputs(spec: InputSpec, node: Node, parts: _Parts) -> Iterator[InputSpec]:
    """Replace the placeholder of a wrapper by placeholders of its inner tensors, and yield their input specs.

    For a plain input, yield the unchanged spec.
    """
    graph = node.graph
    value: Any = node.meta.get("val")
    if not is_wrapper(value):
        yield spec
        return
    name = spec.target or spec.arg.name
    if spec.kind not in _KINDS:
        check_input(f"input {name}", value)  # This raises, because the value is a wrapper.
    placeholders = []
    for index, (_, inner) in enumerate(inner_tensors(value)):
        with graph.inserting_before(node):
            placeholder = graph.placeholder(f"{node.name}_original{index}")
        placeholder.meta = {**node.meta, "val": inner}
        placeholders.append(placeholder)
        yield replace(spec, arg=TensorArgument(name=placeholder.name), target=inner_name(name, index))
    parts[node] = _Wrapped(name, value, tuple(placeholders))


class _Flattening:
    """Visit a graph's nodes in order, and replace every node that takes or returns a wrapper."""

    def __init__(self, graph: Graph, parts: _Parts) -> None:
        self._graph = graph
        self._parts = parts

    def run(self) -> dict[str, str]:
        """Replace the nodes. Return a dict from old to new name for each node that is now a plain node."""
        for node in list(self._graph.nodes):
            if node in self._parts or not any(source in self._parts for source in node.all_input_nodes):
                continue
            self._parts[node] = self._replaced(node)
        for node in reversed(list(self._parts)):
            self._graph.erase_node(node)
        return {node.name: made.name for node, made in self._parts.items() if isinstance(made, Node)}

    def _replaced(self, node: Node) -> Any:
        """Return the replacement of a node. If this is a plain node, also make the node's users use it."""
        if node.op == "output":
            raise self._refusal(node, "`forward` returns it")
        if isinstance(node.target, HigherOrderOperator):
            raise self._refusal(
                node, f"{node.target} cannot be rewritten to use the plain tensors inside of the wrapper"
            )
        if node.target is getitem:
            made = self._parts.of(node.args[0])[node.args[1]]
        elif node.target is _access and (inner := self._accessed(node)) is not None:
            made = inner
        else:
            made = self._traced(node)
        if isinstance(made, Node):
            node.replace_all_uses_with(made)
        return made

    def _accessed(self, node: Node) -> Node | _Wrapped | None:
        """Return the node of the inner tensor that `node` accesses, or None for a computed attribute."""
        wrapped, name = self._parts.of(node.args)
        paths = [path for path, _ in inner_tensors(wrapped.like)]
        nodes = [inner for path, inner in zip(paths, wrapped.nodes, strict=True) if path[0] == name]
        if not nodes:
            return None
        value = getattr(wrapped.like, name)
        return _Wrapped(f"{wrapped.name}.{name}", value, tuple(nodes)) if is_wrapper(value) else nodes[0]

    def _traced(self, node: Node) -> Any:
        """Trace what the wrapper class runs for an operator, insert these nodes, and return the results."""
        args, kwargs = self._parts.of((node.args, node.kwargs))
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Node | _Wrapped)]
        inputs = [n for leaf in leaves for n in (leaf.nodes if isinstance(leaf, _Wrapped) else (leaf,))]
        target: Any = node.target
        given: Any = None

        def call(*tensors: Any) -> list[Any]:
            nonlocal given
            remaining = iter(tensors)

            def filled(leaf: Any) -> Any:
                match leaf:
                    case Node():
                        return next(remaining)
                    case _Wrapped():
                        return rewrapped(leaf.like, lambda _: next(remaining))
                    case _:
                        return leaf

            values, options = tree_map(filled, (args, kwargs))
            given = getattr(*values) if target is _access else target(*values, **options)
            return [inner for leaf in tree_leaves(given) for inner in _plain(leaf)]

        try:
            with torch.no_grad():
                traced = make_fx(call)(*[n.meta["val"] for n in inputs])
        except Exception as error:
            raise self._refusal(node, type_and_line(error)) from error
        outputs = iter(self._inlined(node, traced.graph, inputs))

        def stand_in(leaf: Any) -> Any:
            if is_wrapper(leaf):
                return _Wrapped(node.name, leaf, tuple(next(outputs) for _ in inner_tensors(leaf)))
            return next(outputs) if isinstance(leaf, torch.Tensor) else leaf

        return tree_map(stand_in, given)

    def _inlined(self, node: Node, traced: Graph, inputs: list[Node]) -> list[Node]:
        """Copy the traced nodes into the graph before `node`, and return the nodes of the results."""
        copies: dict[Node, Node] = dict(zip(traced.find_nodes(op="placeholder"), inputs, strict=True))
        made: list[Node] = []
        for old in traced.nodes:
            if old.op == "get_attr":
                raise self._refusal(node, f"for {node.target}, the class creates a constant tensor")
            if old.op == "call_function":
                with self._graph.inserting_before(node):
                    copies[old] = self._graph.node_copy(old, lambda n: copies[n])
                copies[old].meta = {**node.meta, "val": old.meta.get("val")}
                made.append(copies[old])
        results: Any = traced.output_node().args[0]
        found = [copies[result] for result in results]
        for copy in reversed(made):
            if not copy.users and copy not in found and not copy.is_impure():
                self._graph.erase_node(copy)
        return found

    def _refusal(self, node: Node, reason: str) -> UnsupportedSubclassError:
        source = next(source for source in node.all_input_nodes if source in self._parts)
        leaves = tree_leaves(self._parts[source])
        wrapped = next(leaf for leaf in leaves if isinstance(leaf, _Wrapped))
        return UnsupportedSubclassError.of(wrapped.name, wrapped.like, reason, source_span(node))


def _plain(leaf: Any) -> list[torch.Tensor]:
    return [inner for _, inner in inner_tensors(leaf)] if isinstance(leaf, torch.Tensor) else []


def _inner_tensors_by_name(
    held: Mapping[str, Any], tied: dict[int, tuple[torch.Tensor, torch.Tensor]]
) -> dict[str, Any]:
    """Return a state dict or constants with inner tensors instead of wrappers. Tied names stay tied.

    Args:
        held: The tensors.
        tied: Maps the `id` of each inner tensor of a parameter to the tensor and its new parameter. New
            entries are added.
    """
    found = {}
    for name, tensor in held.items():
        if not is_wrapper(tensor):
            found[name] = tensor
            continue
        for index, (_, inner) in enumerate(inner_tensors(tensor)):
            made = inner
            if isinstance(tensor, nn.Parameter) and not isinstance(inner, nn.Parameter):
                _, made = tied.setdefault(id(inner), (inner, _parameter(inner)))
            found[inner_name(name, index)] = made
    return found


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    weight = nn.Parameter(tensor, requires_grad=tensor.requires_grad)
    if is_fake(tensor):
        hand_on_value(tensor, weight)
    return weight
