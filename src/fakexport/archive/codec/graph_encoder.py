"""Encode a graph as JSON in torch's schema."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.export.graph_signature import CustomObjArgument
from torch.fx import GraphModule, Node

from fakexport._torch.operators.operator_registry import (
    HigherOrderOperator,
    OpOverload,
    has_tensor_list_return,
    return_count,
    schema_arguments,
)
from fakexport._torch.tracing.program_schema import SYMBOLIC_OPERATORS
from fakexport.error import InvalidValue
from fakexport.exporting.program import source_span
from fakexport.rules.diagnostics import Span

from .arguments import ArgumentEncoder, object_json
from .node_metadata import GRAPH_NAMES, MetadataEncoder
from .operator_lookup import readable_name
from .values import Json, ValueEncoder

_POSITIONAL, _KEYWORD = 1, 2
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SYMBOLIC_FUNCTIONS = frozenset(SYMBOLIC_OPERATORS.values())
# Operators that call something outside the program, such as compiled kernels and other backends.
_OUTSIDE = frozenset({
    "aoti_call_delegate", "executorch_call_delegate", "triton_kernel_wrapper_functional",
    "triton_kernel_wrapper_mutation",
})  # fmt: skip


class GraphEncoder:
    """Encode one graph, with encoders that all graphs of a program share."""

    def __init__(
        self, values: ValueEncoder, metadata: MetadataEncoder, *, is_for_stock: bool = False
    ) -> None:
        self._values = values
        self._metadata = metadata
        self._is_for_stock = is_for_stock
        self._arguments = ArgumentEncoder(self._subgraph, is_for_stock=is_for_stock)
        self._schemas: dict[OpOverload, tuple[tuple[str, bool, str | None], ...]] = {}
        self._texts: dict[Any, str] = {}
        self._tensors: dict[str, Json] = {}
        self._objects: dict[str, Json] = {}

    def encode(self, module: GraphModule) -> Json:
        """Encode the graph of `module`, or raise a ValueError that names the node and the reason."""
        inputs: list[Json] = []
        outputs: list[Json] = []
        nodes: list[Json] = []
        is_single = False
        for node in module.graph.nodes:
            with _named(node):
                if node.op == "placeholder":
                    inputs.append(self._placeholder(node))
                elif node.op == "call_function":
                    if node.target is not operator.getitem:
                        nodes.append(self._call(node))
                elif node.op == "output":
                    is_single = isinstance(node.args[0], Node)
                    returned = [node.args[0]] if is_single else cast("Iterable[Any]", node.args[0])
                    outputs.extend(self._arguments.of(value) for value in returned)
                elif node.op != "get_attr":
                    raise InvalidValue(f"a {node.op} node is not part of an exported program")
        names = self._arguments.symbolic
        return {
            "inputs": inputs,
            "outputs": outputs,
            "nodes": nodes,
            "tensor_values": self._tensors,
            "sym_int_values": names["as_sym_int"],
            "sym_bool_values": names["as_sym_bool"],
            "is_single_tensor_return": is_single,
            "custom_obj_values": self._objects,
            "sym_float_values": names["as_sym_float"],
        }

    def _subgraph(self, module: GraphModule) -> Json:
        inner = GraphEncoder(self._values, self._metadata, is_for_stock=self._is_for_stock)
        return inner.encode(module)

    def _placeholder(self, node: Node) -> Json:
        value = node.meta["val"]
        if isinstance(value, (torch.Tensor, torch.SymInt)):
            return self._output(node.name, value)
        if isinstance(value, CustomObjArgument):
            self._objects[node.name] = object_json(node.name, value)
            return {"as_custom_obj": self._objects[node.name]}
        if isinstance(value, _SYMBOLIC):
            raise InvalidValue(f"an input that is a {type(value).__name__} cannot be stored")
        return self._arguments.of(value)

    def _call(self, node: Node) -> Json:
        target = node.target
        value = node.meta.get("val")
        is_single: bool | None = None
        if target in _SYMBOLIC_FUNCTIONS or isinstance(value, _SYMBOLIC):
            inputs, outputs = self._symbolic_inputs(node), [self._output(node.name, value)]
        elif isinstance(target, OpOverload):
            inputs, outputs = self._schema_inputs(node, target), self._schema_outputs(node, target)
        elif isinstance(target, HigherOrderOperator):
            if target.name() in _OUTSIDE:
                raise InvalidValue(f"{target.name()} refers to something that is not in the program")
            inputs, outputs = self._free_inputs(node), self._free_outputs(node)
            is_single = isinstance(value, torch.Tensor)
        elif callable(target):
            inputs, outputs = self._free_inputs(node), self._free_outputs(node)
        else:
            raise InvalidValue(f"the target {target!r} cannot be stored")
        text = self._texts.get(target)
        if text is None:
            text = self._texts[target] = readable_name(target)
        metadata = self._metadata.of(node)
        if isinstance(target, HigherOrderOperator) and (names := _graph_names(node)):
            metadata[GRAPH_NAMES] = names
        return {
            "target": text,
            "inputs": inputs,
            "outputs": outputs,
            "metadata": metadata,
            "is_hop_single_tensor_return": is_single,
            "name": node.name,
        }

    def _symbolic_inputs(self, node: Node) -> list[Json]:
        if node.kwargs:
            raise InvalidValue("it passes keyword arguments to an operator on symbolic numbers")
        names: Iterable[str]
        if isinstance(node.target, OpOverload):
            names = (name for name, _, _ in self._schema(node.target))
        else:
            names = inspect.signature(cast("Any", node.target)).parameters
        pairs = zip(names, node.args, strict=False)
        return [_input(name, self._arguments.of(argument), _POSITIONAL) for name, argument in pairs]

    def _schema(self, target: OpOverload) -> tuple[tuple[str, bool, str | None], ...]:
        found = self._schemas.get(target)
        if found is None:
            found = self._schemas[target] = schema_arguments(target)
        return found

    def _schema_inputs(self, node: Node, target: OpOverload) -> list[Json]:
        """Encode the arguments of a call in schema order. Arguments that are not passed are left out."""
        args, kwargs, encode = node.args, node.kwargs, self._arguments.of
        inputs = []
        for index, (name, is_keyword_only, empty) in enumerate(self._schema(target)):
            if name in kwargs:
                inputs.append(_input(name, encode(kwargs[name], empty), _KEYWORD))
            elif index < len(args) and not is_keyword_only:
                inputs.append(_input(name, encode(args[index], empty), _POSITIONAL))
        return inputs

    def _free_inputs(self, node: Node) -> list[Json]:
        positional = [_input("", self._arguments.of(argument), _POSITIONAL) for argument in node.args]
        keywords = node.kwargs.items()
        return positional + [_input(name, self._arguments.of(value), _KEYWORD) for name, value in keywords]

    def _schema_outputs(self, node: Node, target: OpOverload) -> list[Json]:
        count = return_count(target)
        if count == 0:
            return []
        value = node.meta["val"]
        if count == 1 and not has_tensor_list_return(target):
            return [self._output(node.name, value)]
        names = self._part_names(node)
        return [self._tensor_list(value, names, node.name)] if count == 1 else self._parts(node, value, names)

    def _free_outputs(self, node: Node) -> list[Json]:
        value = node.meta.get("val")
        if isinstance(value, tuple):
            return self._parts(node, value, self._part_names(node))
        if isinstance(value, list):
            raise InvalidValue("an operator without a schema that returns a list cannot be stored")
        if isinstance(value, dict):
            names = self._part_names(node)
            return [self._tensor_list(list(value.values()), [names.get(key) for key in value], node.name)]
        return [self._output(node.name, value)]

    def _parts(self, node: Node, value: Iterable[Any], names: Mapping[Any, Node]) -> list[Json]:
        outputs = []
        for index, part in enumerate(value):
            user = names.get(index)
            unused = f"{node.name}_unused_{index}"
            if isinstance(part, (list, tuple)):
                inner = {} if user is None else self._part_names(user)
                outputs.append(self._tensor_list([p for p in part if p is not None], inner, unused, "_"))
            else:
                outputs.append(self._output(unused if user is None else user.name, part))
        return outputs

    def _part_names(self, node: Node) -> dict[Any, Node]:
        """Map the index of each used output to its `getitem` node, and record duplicates of such nodes."""
        found: dict[Any, Node] = {}
        for user in node.users:
            if user.target is not operator.getitem:
                raise InvalidValue(
                    f"its result is used in a way other than indexing, by the node {user.name}"
                )
            first = found.setdefault(user.args[1], user)
            if first is not user:
                self._arguments.same_as[user.name] = first.name
        return found

    def _tensor_list(
        self,
        value: Any,
        users: Mapping[Any, Node] | list[Node | None],
        owner: str,
        separator: str = "_unused_",
    ) -> Json:
        named = dict(enumerate(users)) if isinstance(users, list) else users
        parts = []
        for index, part in enumerate(value):
            if not isinstance(part, torch.Tensor):
                raise InvalidValue(f"a result list that contains a {type(part).__name__} cannot be stored")
            user = named.get(index)
            name = f"{owner}{separator}{index}" if user is None else user.name
            parts.append(self._output(name, part)["as_tensor"])
        return {"as_tensors": parts}

    def _output(self, name: str, value: Any) -> Json:
        if isinstance(value, torch.Tensor):
            self._tensors[name] = self._values.tensor(value)
            return {"as_tensor": {"name": name}}
        if value is None:
            return {"as_none": True}
        symbolic = self._arguments.symbolic
        if isinstance(value, (bool, torch.SymBool)):
            symbolic["as_sym_bool"][name] = self._values.boolean(value)
            return {"as_sym_bool": {"as_name": name}}
        if isinstance(value, (int, torch.SymInt)):
            symbolic["as_sym_int"][name] = self._values.integer(value)
            return {"as_sym_int": {"as_name": name}}
        if isinstance(value, (float, torch.SymFloat)):
            symbolic["as_sym_float"][name] = self._values.floating(value)
            return {"as_sym_float": {"as_name": name}}
        raise InvalidValue(f"a result that is a {type(value).__name__} cannot be stored")


def _input(name: str, argument: Json, kind: int) -> Json:
    return {"name": name, "arg": argument, "kind": kind}


def _graph_names(node: Node) -> str:
    """Join the names of the `get_attr` nodes among the arguments; "" if each name equals its target."""
    graphs = [argument for argument in node.all_input_nodes if argument.op == "get_attr"]
    return ";".join(graph.name for graph in graphs) if any(g.name != g.target for g in graphs) else ""


class NotStored(InvalidValue):
    """A node that an archive cannot store. `span` is the line of the model's code that created it."""

    def __init__(self, message: str, span: Span | None = None) -> None:
        super().__init__(message)
        self.span = span


@contextmanager
def _named(node: Node) -> Any:
    try:
        yield
    except ValueError as error:
        if str(error).startswith("cannot store node "):
            raise
        raise NotStored(
            f"cannot store node {node.name} ({node.target}): {error}", source_span(node)
        ) from error
