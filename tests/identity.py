"""Whether two programs are one and the same, down to what no operator depends on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fakexport._torch.emulation.fake_tensors import storage_identity
from fakexport._torch.tracing.program_assembly import guards_code
from fakexport._torch.tracing.symbolic_numbers import expression_of
from fakexport.exporting.program.program_copy import graph_modules

_ABSENT = "<absent>"
# The file name of generated code is numbered per process; an object without a text has its address.
_NUMBERED = re.compile(r"<eval_with_key>\.\d+| at 0x[0-9a-f]+")


def first_difference(a: ExportedProgram, b: ExportedProgram) -> str | None:
    """Return where two programs differ first, in words; None if they are identical.

    Stricter than `canonical_lines`: names of nodes and of symbols, their order, stack traces, module stacks
    and all other metadata are compared too, and which values share memory.
    """
    for where, one, other in _parts(a, b):
        if one != other:
            return f"{where}: {one!r} and {other!r}"
    return None


def _parts(a: ExportedProgram, b: ExportedProgram) -> Iterator[tuple[str, Any, Any]]:
    memories: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for one, other in zip_longest(graph_modules(a.graph_module), graph_modules(b.graph_module)):
        if one is None or other is None:
            yield "number of graphs", one is None, other is None
            return
        yield from _of_graphs(one, other, memories)
    yield "signature", str(a.graph_signature), str(b.graph_signature)
    yield "ranges", _texts(a.range_constraints), _texts(b.range_constraints)
    yield "guards", guards_code(a), guards_code(b)
    yield "module calls", str(a.module_call_graph), str(b.module_call_graph)
    yield "state", _tensors(a.state_dict), _tensors(b.state_dict)
    yield "constants", _tensors(a.constants), _tensors(b.constants)


def _of_graphs(
    a: GraphModule, b: GraphModule, memories: tuple[dict[int, int], dict[int, int]]
) -> Iterator[tuple[str, Any, Any]]:
    for one, other in zip_longest(a.graph.nodes, b.graph.nodes):
        if one is None or other is None:
            yield "number of nodes", len(a.graph.nodes), len(b.graph.nodes)
            return
        yield f"name of {one.name}", one.name, other.name
        yield f"operator of {one.name}", (one.op, _target(one)), (other.op, _target(other))
        yield f"inputs of {one.name}", str((one.args, one.kwargs)), str((other.args, other.kwargs))
        yield f"type of {one.name}", one.type, other.type
        for key in dict.fromkeys((*one.meta, *other.meta)):
            found = [
                _told(node.meta.get(key, _ABSENT), memory)
                for node, memory in zip((one, other), memories, strict=True)
            ]
            yield f"{key} of {one.name}", found[0], found[1]
        yield f"order of the metadata of {one.name}", list(one.meta), list(other.meta)


def _target(node: Node) -> str:
    return str(node.target)


def _told(value: Any, memories: dict[int, int]) -> Any:
    """Return a value of the metadata as something to compare."""
    if isinstance(value, torch.Tensor):
        return _tensor(value, memories)
    if isinstance(value, dict):
        return [(str(key), _told(item, memories)) for key, item in value.items()]
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [_told(item, memories) for item in value]
    if isinstance(value, GraphModule):
        return "graph module"
    return _NUMBERED.sub("<generated>", f"{type(value).__name__} {value}")


def _tensor(value: torch.Tensor, memories: dict[int, int]) -> tuple[Any, ...]:
    numbers: list[Any] = [value.dtype, str(value.device), value.layout, value.requires_grad, value.is_leaf]
    if value.layout is torch.strided and (memory := _memory(value)) is not None:
        numbers += [str(list(value.stride())), str(value.storage_offset())]
        numbers += [_expanded(value.untyped_storage().nbytes()), memories.setdefault(memory, len(memories))]
    return (type(value).__name__, str(list(value.shape)), *numbers)


def _memory(value: torch.Tensor) -> int | None:
    try:
        return storage_identity(value)
    except NotImplementedError:  # a tensor inside of `vmap`
        return None


def _expanded(number: Any) -> str:
    """Return a size as a sum of products: torch writes the same bytes down in several ways."""
    return str(expression_of(number).expand()) if isinstance(number, torch.SymInt) else str(number)


def _texts(values: dict[Any, Any]) -> list[str]:
    return [f"{key}: {value}" for key, value in values.items()]


def _tensors(values: dict[str, Any]) -> list[Any]:
    memories: dict[int, int] = {}
    return [
        (name, _tensor(value, memories) if isinstance(value, torch.Tensor) else str(type(value)))
        for name, value in values.items()
    ]
