"""Programs of plain tensors alone: each wrapper subclass becomes the tensors inside of it.

`torch.export` leaves a wrapper among the weights as one placeholder, so that the program needs its class, and
with it the package of the class, wherever it is loaded. Here it is flattened as `run_decompositions` flattens
it, under torch's names, and the rest of the graph stays as it was traced:
`access_subclass_inner_tensor(weight, "qdata")` is the placeholder of `qdata`, and an operator that takes a
whole wrapper is replaced by what the class does for it.
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

from fakexport._torch.operator_registry import HigherOrderOperator
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.wrapper_subclasses import inner_name, inner_tensors, is_wrapper, rewrapped
from fakexport.error import type_and_line
from fakexport.fake import SubclassNotKept, is_fake
from fakexport.history import hand_on_value
from fakexport.program import copied_graph, derived_program, source_span

_access = torch.ops.export.access_subclass_inner_tensor.default
_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def flattened(program: ExportedProgram) -> ExportedProgram:
    """Return the program with the tensors inside of wrappers instead of these; itself if it has none.

    Args:
        program: As traced; it is not changed. Its weights may be fakes.
    Raises:
        SubclassNotKept: a wrapper is an input or an output, or takes part in what cannot be flattened.
    """
    held = {**program.state_dict, **program.constants}
    shown = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    if not any(map(is_wrapper, (*held.values(), *shown.values()))):
        return program
    for spec in program.graph_signature.input_specs:
        tensor = held.get(spec.target or "")
        if is_wrapper(tensor) and not is_wrapper(shown[spec.arg.name]):
            name = str(spec.target)
            raise SubclassNotKept.of(
                name, tensor, "torch read the graph from a file, in which it is a plain tensor"
            )
    graph_module = copied_graph(program)
    parts = _Parts()
    specs = [
        inner
        for spec in program.graph_signature.input_specs
        for inner in _inputs(graph_module.graph, spec, parts)
    ]
    renamed = _Flattening(graph_module.graph, parts).run()
    outputs = [
        replace(spec, arg=TensorArgument(name=renamed[spec.arg.name])) if spec.arg.name in renamed else spec
        for spec in program.graph_signature.output_specs
    ]
    tensors = _Tensors()
    return derived_program(
        program,
        graph_module=graph_module,
        state_dict=dict(tensors.inner(program.state_dict)),
        constants=dict(tensors.inner(program.constants)),
        example_inputs=program.example_inputs,
        signature=ExportGraphSignature(specs, outputs),
    )


@dataclass(frozen=True)
class _Wrapped:
    """A wrapper in the graph: what it looks like, with fakes inside, and the nodes of its inner tensors."""

    name: str
    like: torch.Tensor
    nodes: tuple[Node, ...]


class _Parts(dict[Node, Any]):
    """What stands for a node of wrappers: `_Wrapped`, a plain node, a number, or a container of those."""

    def of(self, value: Any) -> Any:
        """Return the same arguments with what stands for each node."""
        return torch.fx.node.map_arg(value, lambda node: self.get(node, node))


def _inputs(graph: Graph, spec: InputSpec, parts: _Parts) -> Iterator[InputSpec]:
    """Yield the inputs that stand for one; its placeholder is replaced in the graph."""
    node = next(n for n in graph.find_nodes(op="placeholder") if n.name == spec.arg.name)
    value = node.meta.get("val")
    if not is_wrapper(value):
        yield spec
        return
    name = spec.target or spec.arg.name
    if spec.kind not in _KINDS:
        reason = "an exported program takes plain tensors; pass its parts and build it in forward"
        raise SubclassNotKept.of(f"input {name}", value, reason)
    placeholders = []
    for index, (_, inner) in enumerate(inner_tensors(value)):
        with graph.inserting_before(node):
            placeholder = graph.placeholder(f"{node.name}_original{index}")
        placeholder.meta = {**node.meta, "val": inner}
        placeholders.append(placeholder)
        yield replace(spec, arg=TensorArgument(name=placeholder.name), target=inner_name(name, index))
    parts[node] = _Wrapped(name, value, tuple(placeholders))


class _Flattening:
    """Go through a graph in order and replace every node that takes or returns a wrapper."""

    def __init__(self, graph: Graph, parts: _Parts) -> None:
        self._graph = graph
        self._parts = parts

    def run(self) -> dict[str, str]:
        """Replace them; returns the names of plain nodes that another one stands for now."""
        for node in list(self._graph.nodes):
            if node in self._parts or not any(source in self._parts for source in node.all_input_nodes):
                continue
            self._parts[node] = self._replaced(node)
        for node in reversed(list(self._parts)):
            self._graph.erase_node(node)
        return {node.name: made.name for node, made in self._parts.items() if isinstance(made, Node)}

    def _replaced(self, node: Node) -> Any:
        """Return what stands for a node from now on; plain tensors already stand for it in the graph."""
        if node.op == "output":
            raise self._refusal(node, "forward returns it")
        if isinstance(node.target, HigherOrderOperator):
            raise self._refusal(node, f"{node.target} takes the whole subclass")
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
        """Return the inner tensor that an attribute is; None for an attribute that the class computes."""
        wrapped, name = self._parts.of(node.args)
        paths = [path for path, _ in inner_tensors(wrapped.like)]
        nodes = [inner for path, inner in zip(paths, wrapped.nodes, strict=True) if path[0] == name]
        if not nodes:
            return None
        value = getattr(wrapped.like, name)
        return _Wrapped(f"{wrapped.name}.{name}", value, tuple(nodes)) if is_wrapper(value) else nodes[0]

    def _traced(self, node: Node) -> Any:
        """Return what the class does for an operator, as nodes instead of the operator."""
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
        """Copy the traced nodes into the graph before `node`; returns those of the results."""
        copies: dict[Node, Node] = dict(zip(traced.find_nodes(op="placeholder"), inputs, strict=True))
        made: list[Node] = []
        for old in traced.nodes:
            if old.op == "get_attr":
                raise self._refusal(node, f"its {node.target} creates a constant")
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

    def _refusal(self, node: Node, reason: str) -> SubclassNotKept:
        source = next(source for source in node.all_input_nodes if source in self._parts)
        leaves = tree_leaves(self._parts[source])
        wrapped = next(leaf for leaf in leaves if isinstance(leaf, _Wrapped))
        return SubclassNotKept.of(wrapped.name, wrapped.like, reason, source_span(node))


def _plain(leaf: Any) -> list[torch.Tensor]:
    return [inner for _, inner in inner_tensors(leaf)] if isinstance(leaf, torch.Tensor) else []


class _Tensors:
    """The inner tensors by name; names of one wrapper, or of one inner tensor, go on sharing one."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, bool], tuple[torch.Tensor, torch.Tensor]] = {}

    def inner(self, held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the entries of a state dict, or constants, without wrappers."""
        for name, tensor in held.items():
            if not is_wrapper(tensor):
                yield name, tensor
                continue
            for index, (_, inner) in enumerate(inner_tensors(tensor)):
                yield inner_name(name, index), self._weight(inner, isinstance(tensor, nn.Parameter))

    def _weight(self, tensor: torch.Tensor, is_parameter: bool) -> torch.Tensor:
        if not is_parameter or isinstance(tensor, nn.Parameter):
            return tensor
        key = id(tensor), is_parameter
        if key not in self._made:
            weight = nn.Parameter(tensor, requires_grad=tensor.requires_grad)
            if is_fake(tensor):
                hand_on_value(tensor, weight)
            self._made[key] = (tensor, weight)
        return self._made[key][1]
