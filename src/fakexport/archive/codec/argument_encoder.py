"""An argument of a call as JSON: one kind per type, as torch's schema has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.export.graph_signature import CustomObjArgument
from torch.fx import GraphModule, Node

from fakexport._torch.operator_registry import HigherOrderOperator, OpOverload
from fakexport._torch.program_schema import LAYOUT_CODES, MEMORY_FORMAT_CODES
from fakexport.error import InvalidValue
from fakexport.program import attribute

from .operator_lookup import readable_name
from .value_encoder import Json, device_json, dtype_json, float_json, integer_json

MIXED_TUPLE = "as_tuple"
"""A kind of argument that torch's schema does not have: stock torch refuses a document with it."""

_SYMBOLIC_KINDS = {"as_sym_int": ("as_int", int), "as_sym_float": ("as_float", float)} | {
    "as_sym_bool": ("as_bool", bool)
}


class ArgumentEncoder:
    """Encodes the arguments in one graph.

    Args:
        subgraph: Encodes the graph of a module that is an argument.
        is_for_stock: Whether stock torch has to read the result, so that it has only what torch's schema has.
    """

    def __init__(self, subgraph: Callable[[GraphModule], Json], *, is_for_stock: bool = False) -> None:
        self._subgraph = subgraph
        self._is_for_stock = is_for_stock
        self.symbolic: dict[str, dict[str, Json]] = {kind: {} for kind in _SYMBOLIC_KINDS}
        """Kind -> name -> value of the symbolic numbers that the graph has so far."""
        self.same_as: dict[str, str] = {}
        """Name of a node -> name of an earlier node for the same value."""

    def of(self, value: Any, empty_list_kind: str | None = None) -> Json:
        """Return one argument.

        Args:
            value: A node, or a literal.
            empty_list_kind: What an empty list is here, such as `as_ints`; by default it is one of tensors.
        """
        if isinstance(value, Node):
            return self._node(value)
        if value is None:
            return {"as_none": True}
        kind = type(value)
        if kind in _SCALARS:
            return _SCALARS[kind](value)
        if isinstance(value, (list, tuple)):
            return self._list(value, empty_list_kind)
        if isinstance(value, dict):
            if not all(type(key) is str for key in value):
                raise InvalidValue("a dictionary with a key that is not a string")
            return {"as_string_to_argument": {key: self.of(entry) for key, entry in value.items()}}
        if isinstance(value, (OpOverload, HigherOrderOperator)):
            return {"as_operator": readable_name(value)}
        raise InvalidValue(f"an argument of type {kind.__name__} cannot be stored")

    def _node(self, node: Node) -> Json:
        name = node.name
        if node.op == "get_attr":
            held = attribute(node.graph.owning_module, str(node.target))
            if not isinstance(held, GraphModule):
                raise InvalidValue(
                    f"{node.target}, a {type(held).__name__} that is not an input, cannot be stored"
                )
            return {"as_graph": {"name": node.target, "graph": self._subgraph(held)}}
        for kind, names in self.symbolic.items():
            if name in names:
                return {kind: {"as_name": name}}
        if isinstance(held := node.meta.get("val"), CustomObjArgument):
            return {"as_custom_obj": object_json(node.name, held)}
        return {"as_tensor": self._tensor(node)}

    def _tensor(self, node: Node) -> Json:
        if node.op == "get_attr":
            raise InvalidValue(f"{node.target}, a tensor that is not an input, cannot be stored")
        return {"name": self.same_as.get(node.name, node.name)}

    def _list(self, values: Sequence[Any], empty_list_kind: str | None) -> Json:
        if not values:
            return {empty_list_kind or "as_tensors": []}
        kinds = set(map(type, values))
        if len(kinds) == 1 and (literal := _LITERAL_LISTS.get(next(iter(kinds)))):
            entries = map(float_json, values) if literal == "as_floats" else values
            return {literal: list(entries)}
        for kind, (fixed, number) in _SYMBOLIC_KINDS.items():
            names = self.symbolic[kind]
            if all(type(v) is number or (isinstance(v, Node) and v.name in names) for v in values):
                return {
                    f"{kind}s": [{"as_name": v.name} if isinstance(v, Node) else {fixed: v} for v in values]
                }
        if all(isinstance(value, Node) for value in values):
            return {"as_tensors": [self._tensor(value) for value in values]}
        if all(value is None or isinstance(value, Node) for value in values):
            return {"as_optional_tensors": [self._optional_tensor(value) for value in values]}
        if all(isinstance(value, (list, tuple)) for value in values):
            return self._nested(values)
        if isinstance(values, tuple):
            return self._mixed(values)
        raise InvalidValue(f"a list of {_named(kinds)} cannot be stored")

    def _mixed(self, values: tuple[Any, ...]) -> Json:
        """Return a tuple that torch's schema has no kind for, such as the block mask of FlexAttention."""
        if self._is_for_stock:
            what = f"torch's format cannot store a tuple of {_named(set(map(type, values)))}"
            raise InvalidValue(
                f"{what}, but an archive with weights must be in that format: save it "
                "without weights, or link them"
            )
        return {MIXED_TUPLE: [self.of(value) for value in values]}

    def _optional_tensor(self, node: Node | None) -> Json:
        return {"as_none": True} if node is None else {"as_tensor": self._tensor(node)}

    def _nested(self, values: Sequence[Sequence[Any]]) -> Json:
        kinds = {type(entry) for inner in values for entry in inner}
        if all(issubclass(kind, Node) for kind in kinds):
            return {"as_nested_tensors": [[self._tensor(node) for node in inner] for inner in values]}
        if kinds == {int} and all(isinstance(inner, tuple) for inner in values):
            return {"as_int_lists": [list(inner) for inner in values]}
        if kinds == {float}:
            return {"as_float_lists": [[float_json(entry) for entry in inner] for inner in values]}
        raise InvalidValue("such a list of lists cannot be stored")


def object_json(name: str, held: CustomObjArgument) -> Json:
    """Return an object of a C++ class, by the name that it has in the graph."""
    return {"name": name, "class_fqn": held.class_fqn}


def _named(kinds: set[type]) -> str:
    return ", ".join(sorted(kind.__name__ for kind in kinds))


_LITERAL_LISTS = {bool: "as_bools", int: "as_ints", float: "as_floats", str: "as_strings"}

_SCALARS: dict[type, Callable[[Any], Json]] = {
    bool: lambda value: {"as_bool": value},
    int: lambda value: {"as_int": integer_json(value)},
    float: lambda value: {"as_float": float_json(value)},
    str: lambda value: {"as_string": value},
    complex: lambda value: {"as_complex": {"real": float_json(value.real), "imag": float_json(value.imag)}},
    torch.dtype: lambda value: {"as_scalar_type": dtype_json(value)},
    torch.device: lambda value: {"as_device": device_json(value)},
    torch.layout: lambda value: {"as_layout": LAYOUT_CODES[value]},
    torch.memory_format: lambda value: {"as_memory_format": MEMORY_FORMAT_CODES[value]},
}
