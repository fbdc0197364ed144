"""Decode the arguments of calls: literals, and the nodes that a document names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch.export.graph_signature import CustomObjArgument
from torch.fx import Node

from fakexport._torch.program_schema import LAYOUT_CODES, MEMORY_FORMAT_CODES
from fakexport.documents import (
    DocumentError,
    boolean,
    decimal,
    entries,
    field,
    identifier,
    integer,
    items,
    mapping,
    text,
    union,
)

from .argument_encoder import MIXED_TUPLE
from .operator_lookup import Operators
from .value_decoder import read_device, read_dtype

_LAYOUTS = {code: layout for layout, code in LAYOUT_CODES.items()}
_MEMORY_FORMATS = {code: memory_format for memory_format, code in MEMORY_FORMAT_CODES.items()}
_MAX_DEPTH = 50
_CLASS = re.compile(r"__torch__\.torch\.classes(\.[A-Za-z_]\w*){2,}", re.ASCII)
_SYMBOLIC = ("as_sym_int", "as_sym_float", "as_sym_bool")


class ArgumentDecoder:
    """Reads arguments in one graph.

    Args:
        nodes: Name -> node, of what the graph has so far.
        operators: For operators that are arguments.
        subgraph: Reads a graph that is an argument, and returns the node that stands for it.
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
        """Return the node that `{"name": ...}` names."""
        return self._node(field(mapping(value), "name", text))

    def _inner(self, value: Any) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise DocumentError("an argument that is nested too deeply")
        try:
            return self.read(value)
        finally:
            self._depth -= 1

    def _node(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            raise DocumentError(f"no value is called {name[:80]!r} before this place")
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
    """Kind and name of a result: `("as_tensor", "mul_3")`, `("as_sym_int", "item")`, `("as_none", "")`."""
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
    """Return an object of a C++ class: what it is called in the graph, and its class."""
    owner = mapping(value)
    name, class_name = field(owner, "name", identifier), field(owner, "class_fqn", text)
    if not _CLASS.fullmatch(class_name):
        raise DocumentError(f"{class_name[:80]!r} is not the name of a C++ class").within("class_fqn")
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
