"""Format a node's arguments and value as text, with marks instead of nodes and devices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch.export.graph_signature import CustomObjArgument
from torch.fx import GraphModule, Node

from fakexport.exporting.program.devices import device_of_literal
from fakexport.exporting.program.node_names import target_name
from fakexport.exporting.program.tensor_spec import Spelling, TensorSpec

# Marks for a node and for a device; `repr` escapes them in strings, so no literal contains them.
NODE_MARK, DEVICE_MARK = "\x01", "\x02"

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_BLANKS = re.compile(r"\s+")
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.layout, torch.memory_format, type(None))


class MarkedText:
    """Format values as text with marks, and collect the nodes and devices that the marks replace.

    Args:
        spelling: Formats symbolic sizes. All texts of a program share one instance.
        subgraphs: Number of each subgraph. New subgraphs are added.
    """

    def __init__(self, spelling: Spelling, subgraphs: dict[GraphModule, int]) -> None:
        self._spelling = spelling
        self._subgraphs = subgraphs
        self.nodes: list[Node] = []
        self.devices: list[str] = []
        self.tensors: list[TensorSpec] = []

    def of(self, value: Any) -> str:
        """Return an argument or a node's `val` as text with marks."""
        if isinstance(value, Node):
            self.nodes.append(value)
            return NODE_MARK
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        device = device_of_literal(value)
        if device is not None:
            self.devices.append(device)
            return f"device({DEVICE_MARK})" if isinstance(value, torch.device) else f"'{DEVICE_MARK}'"
        if isinstance(value, _SYMBOLIC):
            return f"{type(value).__name__}({self._spelling.size(value)})"
        if isinstance(value, _PLAIN):
            return repr(value)
        return self._container(value)

    def _tensor(self, value: torch.Tensor) -> str:
        spec = self._spelling.tensor(value)
        self.tensors.append(spec)
        self.devices.append(spec.device)
        return f"{spec.dtype}[{', '.join(spec.shape)}]{{{', '.join(spec.stride)}}} {DEVICE_MARK}"

    def _container(self, value: Any) -> str:
        if isinstance(value, (list, tuple)):
            # Operators accept tuples and lists, and saving a program converts some tuples to lists.
            return f"[{', '.join(map(self.of, value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{key!r}: {self.of(item)}' for key, item in value.items())}}}"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self.of, (value.start, value.stop, value.step)))})"
        if isinstance(value, CustomObjArgument):  # The object may or may not have a fake class.
            return f"object of {value.class_fqn}"
        if isinstance(value, GraphModule):
            return f"subgraph {self._subgraphs.setdefault(value, len(self._subgraphs))}"
        return target_name(value) if callable(value) else f"{type(value).__qualname__} {plain_repr(value)}"


def fill(text: str, mark: str, values: Iterable[str]) -> str:
    """Replace each mark in a text with the next value."""
    first, *rest = text.split(mark)
    return first + "".join(f"{value}{part}" for value, part in zip(values, rest, strict=True))


def plain_repr(value: object) -> str:
    """Return the `repr` of a value on one line and without memory addresses."""
    return _BLANKS.sub(" ", _ADDRESS.sub("", repr(value)))
