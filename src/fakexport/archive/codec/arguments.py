"""Encode and decode the arguments of calls: literals, and nodes referenced by name.

As in torch's schema, the kind of an encoded argument names its type, such as `as_int` or `as_tensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import CustomObjArgument
from torch.fx import GraphModule, Node

from fakexport._torch.operators.operator_registry import HigherOrderOperator, OpOverload
from fakexport._torch.tracing.program_schema import LAYOUT_CODES, MEMORY_FORMAT_CODES
from fakexport.archive.codec.operator_lookup import Operators, readable_name
from fakexport.archive.codec.value_reader import read_object as read_object_names
from fakexport.archive.codec.values import (
    Json,
    device_json,
    dtype_json,
    float_json,
    integer_json,
    read_device,
    read_dtype,
)
from fakexport.error import InvalidValue
from fakexport.exporting.program import attribute
from fakexport.files.documents import (
    DocumentError,
    boolean,
    decimal,
    entries,
    field,
    integer,
    items,
    mapping,
    text,
    union,
)

MIXED_TUPLE = "as_tuple"
"""Kind of an argument that is a tuple of mixed types. torch's schema lacks it, so stock torch rejects it."""

_SYMBOLIC_KINDS = {"as_sym_int": ("as_int", int), "as_sym_float": ("as_float", float)} | {
    "as_sym_bool": ("as_bool", bool)
}


class ArgumentEncoder:
    """Encode the arguments in one graph. `subgraph` encodes a graph that is passed as an argument.

    With `is_for_stock`, only torch's schema is used, so that stock torch can read the result.
    """

    def __init__(self, subgraph: Callable[[GraphModule], Json], *, is_for_stock: bool = False) -> None:
        self._subgraph = subgraph
        self._is_for_stock = is_for_stock
        self.symbolic: dict[str, dict[str, Json]] = {kind: {} for kind in _SYMBOLIC_KINDS}
        """Symbolic numbers found in the graph so far: kind -> name -> encoded value."""
        self.same_as: dict[str, str] = {}
        """Name of a node -> name of an earlier node with the same value."""

    def of(self, value: Any, empty_list_kind: str | None = None) -> Json:
        """Encode a node or a literal. An empty list gets the kind `empty_list_kind`, such as `as_ints`."""
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
                raise InvalidValue("a dictionary with a key that is not a string cannot be stored")
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
        """Encode a tuple of mixed types, such as a block mask. torch's schema has no kind for it."""
        if self._is_for_stock:
            what = f"torch's format cannot store a tuple of {_named(set(map(type, values)))}"
            raise InvalidValue(
                f"{what}, but an archive with weights must use that format: save the program without "
                "weights, or link the weights"
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
        raise InvalidValue("this kind of nested list cannot be stored")


def object_json(name: str, held: CustomObjArgument) -> Json:
    """Encode a C++ object as its class and its name in the graph."""
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


_LAYOUTS = {code: layout for layout, code in LAYOUT_CODES.items()}
_MEMORY_FORMATS = {code: memory_format for memory_format, code in MEMORY_FORMAT_CODES.items()}
_MAX_DEPTH = 50
_SYMBOLIC = ("as_sym_int", "as_sym_float", "as_sym_bool")


class ArgumentDecoder:
    """Decode the arguments of the calls in one graph.

    Args:
        nodes: Nodes that have been decoded so far, by name.
        subgraph: Decodes a graph that is passed as an argument, and returns its `get_attr` node.
    """

    def __init__(
        self, nodes: Mapping[str, Node], operators: Operators, subgraph: Callable[[Any], Node]
    ) -> None:
        self._nodes = nodes
        self._depth = 0
        lists: dict[str, Callable[[Any], Any]] = {
            "as_ints": integer, "as_floats": decimal, "as_bools": boolean, "as_strings": text,
            "as_tensors": self.tensor, "as_optional_tensors": self._optional_tensor,
            "as_nested_tensors": lambda value: items(value, self.tensor),
            "as_int_lists": lambda value: tuple(items(value, integer)),
            "as_float_lists": lambda value: items(value, decimal),
            "as_sym_ints": lambda value: self._symbolic(value, "as_int", integer),
            "as_sym_floats": lambda value: self._symbolic(value, "as_float", decimal),
            "as_sym_bools": lambda value: self._symbolic(value, "as_bool", boolean),
        }  # fmt: skip
        self._kinds: dict[str, Callable[[Any], Any]] = {
            "as_none": lambda value: None,
            "as_tensor": self.tensor,
            "as_int": integer,
            "as_float": decimal,
            "as_bool": boolean,
            "as_string": text,
            "as_scalar_type": read_dtype,
            "as_device": read_device,
            "as_layout": lambda value: _from_table(value, _LAYOUTS, "layout"),
            "as_memory_format": lambda value: _from_table(value, _MEMORY_FORMATS, "memory format"),
            "as_complex": _read_complex,
            "as_sym_int": lambda value: self._symbolic(value, "as_int", integer),
            "as_sym_float": lambda value: self._symbolic(value, "as_float", decimal),
            "as_sym_bool": lambda value: self._symbolic(value, "as_bool", boolean),
            "as_operator": lambda value: operators.target(text(value)),
            "as_optional_tensor": self._optional_tensor,
            "as_string_to_argument": lambda value: entries(value, self._inner),
            MIXED_TUPLE: lambda value: tuple(items(value, self._inner)),
            "as_graph": subgraph,
            "as_custom_obj": self.tensor,
            **{kind: _list_of(read) for kind, read in lists.items()},
        }

    def read(self, value: Any) -> Any:
        """Return a literal, a node, or a list of these."""
        kind, content = union(value)
        read = self._kinds.get(kind)
        if read is None:
            raise DocumentError(f"unsupported kind of argument {kind[:40]!r}")
        try:
            return read(content)
        except DocumentError as error:
            raise error.within(kind) from None

    def tensor(self, value: Any) -> Node:
        """Return the node that `{"name": ...}` refers to."""
        return self._node(field(mapping(value), "name", text))

    def _inner(self, value: Any) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise DocumentError("an argument is nested too deeply")
        try:
            return self.read(value)
        finally:
            self._depth -= 1

    def _node(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            raise DocumentError(f"no earlier value has the name {name[:80]!r}")
        return node

    def _optional_tensor(self, value: Any) -> Node | None:
        kind, content = union(value)
        if kind not in ("as_none", "as_tensor"):
            raise DocumentError("expected as_tensor or as_none")
        return None if kind == "as_none" else self.tensor(content)

    def _symbolic(self, value: Any, fixed: str, read: Callable[[Any], Any]) -> Any:
        kind, content = union(value)
        if kind == "as_name":
            return self._node(text(content))
        if kind != fixed:
            raise DocumentError(f"expected as_name or {fixed}")
        return read(content)


def output_name(value: Any) -> tuple[str, str]:
    """Return the kind and name of an output, such as `("as_tensor", "mul_3")` or `("as_none", "")`."""
    kind, content = union(value)
    try:
        if kind == "as_tensor":
            return kind, field(mapping(content), "name", text)
        if kind in _SYMBOLIC:
            return kind, field(mapping(content), "as_name", text)
    except DocumentError as error:
        raise error.within(kind) from None
    if kind == "as_none":
        return kind, ""
    raise DocumentError(f"unsupported kind of result {kind[:40]!r}")


def read_object(value: Any) -> CustomObjArgument:
    """Decode the name and class of a C++ object that a graph uses."""
    name, class_name = read_object_names(value)
    return CustomObjArgument(name=name, class_fqn=class_name)


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda value: items(value, read)


def _from_table(value: Any, table: Mapping[int, Any], what: str) -> Any:
    code = integer(value)
    if code not in table:
        raise DocumentError(f"{code} is not the code of a {what}")
    return table[code]


def _read_complex(value: Any) -> complex:
    owner = mapping(value)
    return complex(field(owner, "real", decimal), field(owner, "imag", decimal))
