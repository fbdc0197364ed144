"""Decode a graph from a document in torch's schema."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fakexport._torch.operators.operator_registry import HigherOrderOperator, OpOverload, schema_arguments
from fakexport._torch.tracing.program_assembly import new_subgraph
from fakexport.files.documents import (
    DocumentError,
    boolean,
    entries,
    field,
    identifier,
    integer,
    items,
    mapping,
    optional,
    text,
    union,
)

from .arguments import ArgumentDecoder, output_name, read_object
from .node_metadata import GRAPH_NAMES, MetadataDecoder
from .operator_lookup import Operators
from .value_reader import Description
from .values import ValueDecoder

_MAX_DEPTH = 20
_POSITIONAL, _KEYWORD = 1, 2
_LITERAL_INPUTS = frozenset(("as_int", "as_float", "as_bool", "as_none", "as_string"))
_NOT_A_SUBGRAPH_NAME = frozenset(dir(GraphModule(torch.nn.Module(), Graph())))
# Operators that reject a list where they expect a tuple. The schema stores both as lists.
_TAKE_TUPLES = frozenset(("flex_attention",))
_NOTHING = object()


@dataclass
class Shared:
    """State that all graphs of one program share."""

    values: ValueDecoder
    operators: Operators
    metadata: MetadataDecoder
    schemas: dict[OpOverload, dict[str, tuple[int, bool]]] = dataclass_field(default_factory=dict)

    def schema(self, operator: OpOverload) -> dict[str, tuple[int, bool]]:
        """Return `(position, is_keyword_only)` of each argument, by name."""
        found = self.schemas.get(operator)
        if found is None:
            arguments = enumerate(schema_arguments(operator))
            found = {name: (index, is_keyword_only) for index, (name, is_keyword_only, _) in arguments}
            self.schemas[operator] = found
        return found


class GraphDecoder:
    """Decode one graph. Each subgraph gets its own decoder.

    Args:
        constant_names: Names of all inputs, used to name constant inputs; None for a subgraph.
        depth: Nesting depth of this graph.
    """

    def __init__(self, shared: Shared, constant_names: Sequence[str] | None = None, depth: int = 0) -> None:
        if depth > _MAX_DEPTH:
            raise DocumentError(f"the graph is nested {depth} levels deep")
        self.graph = Graph()
        self.root = torch.nn.Module()
        self._shared = shared
        self._constant_names = constant_names
        self._depth = depth
        self._nodes: dict[str, Node] = {}
        self._names: set[str] = set()
        self._tensors: dict[str, Description] = {}
        self._numbers: dict[str, Any] = {}
        self._graph_names: Iterator[str] = iter(())
        self._arguments = ArgumentDecoder(self._nodes, shared.operators, self._subgraph)

    def decode(self, document: Any) -> None:
        """Fill `graph` and `root`, or raise a `DocumentError` that names the position and the fault."""
        owner = mapping(document)
        values = self._shared.values
        self._tensors = field(owner, "tensor_values", lambda v: entries(v, values.describe))
        self._numbers = {
            **field(owner, "sym_int_values", lambda v: entries(v, values.sym_int), {}),
            **field(owner, "sym_float_values", lambda v: entries(v, values.sym_float), {}),
            **field(owner, "sym_bool_values", lambda v: entries(v, values.sym_bool), {}),
        }
        positions = iter(range(len(owner["inputs"]) if type(owner.get("inputs")) is list else 0))
        field(owner, "inputs", lambda v: items(v, lambda entry: self._input(entry, next(positions))))
        field(owner, "nodes", lambda v: items(v, self._node))
        outputs = field(owner, "outputs", lambda v: items(v, self._arguments.read))
        self._output(outputs, field(owner, "is_single_tensor_return", boolean, False))

    def new_tensor(self, name: str) -> torch.Tensor | None:
        """Return a new fake tensor like the value with this name, or None if the value is not a tensor."""
        described = self._tensors.get(name)
        return None if described is None else self._shared.values.tensor(described, is_own_storage=True)

    def _input(self, value: Any, position: int) -> None:
        kind, content = union(value)
        if kind in ("as_tensor", "as_sym_int"):
            _, name = output_name(value)
            self._placeholder(name, self._value(name, is_input=True))
        elif kind in _LITERAL_INPUTS:
            names = self._constant_names
            name = names[position] if names is not None and position < len(names) else ""
            self._placeholder(name or f"arg{position}", self._arguments.read(value))
        elif kind == "as_custom_obj":
            held = read_object(content)
            self._placeholder(held.name, held)
        else:
            raise DocumentError(f"unsupported kind of input {kind[:40]!r}")

    def _placeholder(self, name: str, value: Any) -> None:
        self._create("placeholder", name, (), {}, name, value)

    def _output(self, outputs: list[Any], is_single: bool) -> None:
        if is_single and (len(outputs) != 1 or not isinstance(outputs[0], Node)):
            raise DocumentError("expected one node, because the graph has a single result").within("outputs")
        result = outputs[0] if is_single else tuple(outputs)
        node = self.graph.output(result)
        values = tuple(o.meta["val"] if isinstance(o, Node) else o for o in outputs)
        node.meta["val"] = values[0] if is_single else values

    def _subgraph(self, value: Any) -> Node:
        owner = mapping(value)
        target = field(owner, "name", identifier)
        if target in _NOT_A_SUBGRAPH_NAME:
            raise DocumentError(f"a subgraph must not have the name {target!r}").within("name")
        inner = GraphDecoder(self._shared, depth=self._depth + 1)
        field(owner, "graph", inner.decode)
        self.root.register_module(target, new_subgraph(inner.root, inner.graph))
        name = next(self._graph_names, target)
        return self._create("get_attr", target, (), {}, self._free_name(name), _NOTHING)

    def _node(self, value: Any) -> None:
        owner = mapping(value)
        target = field(owner, "target", lambda v: self._shared.operators.target(text(v)))
        outputs = field(owner, "outputs", lambda v: items(v, union))
        metadata = field(owner, "metadata", self._shared.metadata.read, {})
        metadata.setdefault("nn_module_stack", {})
        is_higher = isinstance(target, HigherOrderOperator)
        if is_higher:
            self._graph_names = _graph_names(owner)
        if isinstance(target, OpOverload):
            schema = self._shared.schema(target)
            args, kwargs = field(owner, "inputs", lambda v: self._schema_arguments(v, schema))
        else:
            args, kwargs = field(owner, "inputs", self._free_arguments)
        if is_higher and target.name() in _TAKE_TUPLES:
            args = tuple(tuple(a) if type(a) is list else a for a in args)
        name = self._node_name(owner, outputs, target)
        is_tuple = is_higher and owner.get("is_hop_single_tensor_return") is False
        node = self._create("call_function", target, args, kwargs, name, _NOTHING)
        try:
            self._results(node, outputs, is_tuple, metadata)
        except DocumentError as error:
            raise error.within("outputs") from None
        node.meta.update(metadata)
        if is_higher:
            for argument in node.all_input_nodes:
                if argument.op == "get_attr":
                    argument.meta.update(metadata)
        self._shared.values.table.keep_promise(node)

    def _node_name(self, owner: dict[str, Any], outputs: list[tuple[str, Any]], target: Any) -> str:
        name = field(owner, "name", lambda v: optional(v, text), None)
        if name:
            return name
        if len(outputs) == 1 and outputs[0][0] != "as_none":
            kind, content = outputs[0]
            if kind != "as_tensors":
                return output_name({kind: content})[1]
        return self._free_name(getattr(target, "__name__", "call").partition(".")[0])

    def _schema_arguments(
        self, value: Any, schema: dict[str, tuple[int, bool]]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}

        def read(entry: Any) -> None:
            name, kind, argument = self._named_argument(entry)
            if name not in schema:
                raise DocumentError(f"the operator has no argument {name[:80]!r}")
            position, is_keyword_only = schema[name]
            if kind is None:
                kind = _POSITIONAL if position == len(args) and not is_keyword_only else _KEYWORD
            if kind == _POSITIONAL or keyword.iskeyword(name):
                if position != len(args) or is_keyword_only:
                    raise DocumentError(f"the argument {name[:80]!r} does not belong in this position")
                args.append(argument)
            elif name in kwargs or position < len(args):
                raise DocumentError(f"the argument {name[:80]!r} is given twice")
            else:
                kwargs[name] = argument

        items(value, read)
        return tuple(args), kwargs

    def _free_arguments(self, value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}

        def read(entry: Any) -> None:
            name, kind, argument = self._named_argument(entry)
            if kind == _POSITIONAL or name == "":
                args.append(argument)
            elif name in kwargs:
                raise DocumentError(f"the argument {name[:80]!r} is given twice")
            else:
                kwargs[identifier(name)] = argument

        items(value, read)
        return tuple(args), kwargs

    def _named_argument(self, entry: Any) -> tuple[str, int | None, Any]:
        owner = mapping(entry)
        kind = field(owner, "kind", lambda v: optional(v, lambda n: integer(n, 0, 2)), None)
        return field(owner, "name", text), kind or None, field(owner, "arg", self._arguments.read)

    def _results(
        self, node: Node, outputs: list[tuple[str, Any]], is_tuple: bool, metadata: dict[str, Any]
    ) -> None:
        if not outputs:
            node.meta["val"] = () if is_tuple else None
        elif len(outputs) == 1 and outputs[0][0] == "as_tensors":
            value = self._tensor_list(node, outputs[0][1], metadata)
            node.meta["val"] = value
        elif len(outputs) == 1 and not (is_tuple and outputs[0][0] != "as_none"):
            kind, name = output_name(dict(outputs))
            if kind != "as_none" and name != node.name:
                self._nodes[self._take(name)] = node
                node.name = name
            node.meta["val"] = None if kind == "as_none" else self._value(name)
            self._bind(node)
        else:
            parts = enumerate(outputs)
            node.meta["val"] = tuple(self._part(node, index, part, metadata) for index, part in parts)

    def _part(self, node: Node, index: int, output: tuple[str, Any], metadata: dict[str, Any]) -> Any:
        """Return one of a node's outputs. If it is used, create the `getitem` node that extracts it."""
        kind, content = output
        if kind == "as_tensors":
            names = _names(content)
            unused = [f"{node.name}_unused_{index}_{inner}" for inner in range(len(names))]
            if names == unused:
                return [self._value(name) for name in names]
            taken = self._create(
                "call_function",
                getitem,
                (node, index),
                {},
                self._free_name(f"{node.name}_list_{index}"),
                _NOTHING,
            )
            taken.meta["val"] = self._tensor_list(taken, content, metadata)
            taken.meta.update(metadata)
            return taken.meta["val"]
        kind, name = output_name({kind: content})
        return None if kind == "as_none" else self._taken_out(node, index, name, metadata)

    def _tensor_list(self, node: Node, content: Any, metadata: dict[str, Any]) -> list[Any]:
        return [self._taken_out(node, index, name, metadata) for index, name in enumerate(_names(content))]

    def _taken_out(self, node: Node, index: int, name: str, metadata: dict[str, Any]) -> Any:
        value = self._value(name)
        if name != f"{node.name}_unused_{index}":
            taken = self._create("call_function", getitem, (node, index), {}, name, value)
            taken.meta.update(metadata)
        return value

    def _value(self, name: str, *, is_input: bool = False) -> Any:
        if name in self._tensors:
            return self._shared.values.tensor(self._tensors[name], is_own_storage=is_input)
        if name in self._numbers:
            return self._numbers[name]
        raise DocumentError(f"the graph has no metadata for the value {name[:80]!r}")

    def _create(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, value: Any
    ) -> Node:
        self._take(name)
        if op == "placeholder":
            node = self.graph.placeholder(name)
        else:
            node = self.graph.create_node(op, target, args, kwargs, name)
        if node.name != name:
            node.name = name  # fx renames `input` to avoid a clash in generated code
        self._nodes[name] = node
        if value is not _NOTHING:
            node.meta["val"] = value
            self._bind(node)
        return node

    def _bind(self, node: Node) -> None:
        if bindings := self._shared.values.table.unbacked_bindings(node.meta["val"]):
            node.meta["unbacked_bindings"] = bindings

    def _take(self, name: str) -> str:
        if name in self._names:
            raise DocumentError(f"two values have the name {name[:80]!r}")
        self._names.add(identifier(name))
        return name

    def _free_name(self, wanted: str) -> str:
        name, count = wanted, 0
        while name in self._names or name in self._tensors or name in self._numbers:
            count += 1
            name = f"{wanted}_{count}"
        return name


def _names(value: Any) -> list[str]:
    return items(value, lambda entry: field(mapping(entry), "name", text))


def _graph_names(owner: dict[str, Any]) -> Iterator[str]:
    names = owner.get("metadata", {}).get(GRAPH_NAMES, "")
    return iter([identifier(name) for name in names.split(";")] if names else [])
