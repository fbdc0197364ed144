"""Devices that are written into a program as literals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operator_schema import argument_names
from fakexport.diagnostics import Span
from fakexport.program.operator_name import operator_name
from fakexport.program.walk import Visit, walk

__all__ = ["DeviceLiteral", "device_of_literal", "devices"]

_DEVICE_NAME = re.compile(r"(cpu|cuda|xpu|mps|hpu|xla|mtia|npu|hip|vulkan|meta)(:\d+)?")


@dataclass(frozen=True)
class DeviceLiteral:
    """One device that one node names.

    Args:
        node: Name of the graph node.
        operator: `aten.arange.default`.
        argument: Name of the argument (`device`, `device_type`); with an index inside a list
            (`devices[1]`), by position (`2`) where the operator names no arguments.
        device: As it is written: `cuda:0`, or `cuda` without an index.
        span: The user's line, if the node has one.
        module_path: Path of the module that the node came from.
        graph: Name of the subgraph that holds the node; "" is the main graph.
        index: Position of the node in the order of execution, from 0.
    """

    node: str
    operator: str
    argument: str
    device: str
    span: Span | None
    module_path: str
    graph: str
    index: int


def devices(program: ExportedProgram) -> tuple[DeviceLiteral, ...]:
    """Returns the device literals of all nodes in the order of execution, subgraphs included.

    Finds `torch.device` values and strings that are nothing but a device name (as autocast regions and
    custom operators have them), as keywords, by position and inside lists. Says nothing about intent.

    Args:
        program: Not changed.
    """
    return tuple(literal for visit in walk(program) for literal in _literals(visit))


def device_of_literal(value: Any) -> str | None:
    """The device that an argument names, or None for an argument that names none."""
    if isinstance(value, torch.device):
        return str(value)
    return value if isinstance(value, str) and _DEVICE_NAME.fullmatch(value) else None


def _literals(visit: Visit) -> Iterator[DeviceLiteral]:
    if visit.node.op != "call_function":
        return
    for argument, value in _arguments(visit.node):
        for place, device in _devices_in(value):
            yield DeviceLiteral(
                node=visit.node.name,
                operator=operator_name(visit.node),
                argument=f"{argument}{place}",
                device=device,
                span=visit.span,
                module_path=visit.module_path,
                graph=visit.graph,
                index=visit.index,
            )


def _arguments(node: Node) -> Iterator[tuple[str, Any]]:
    names = argument_names(node.target)
    for position, value in enumerate(node.args):
        yield names[position] if position < len(names) else str(position), value
    yield from node.kwargs.items()


def _devices_in(value: Any) -> Iterator[tuple[str, str]]:
    device = device_of_literal(value)
    if device is not None:
        yield "", device
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from ((f"[{index}]{place}", found) for place, found in _devices_in(item))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from ((f"[{key!r}]{place}", found) for place, found in _devices_in(item))
