"""Look up the operators of a program in a table of those that Torch-TensorRT converts.

Torch-TensorRT cannot be imported without CUDA, so tools/tensorrt_table.py reads the table from its sources.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from operator import getitem
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing.program_assembly import partly_decomposed
from fakexport.exporting.program import devices_of_program, operator_name, plain_name, user_inputs, walk

from ..unsupported import fallbacks_of
from .covered import Covered, on_the_cpu, with_example_values

_OUTSIDE = (torch.float64, torch.complex64, torch.complex128)
_POOL_WITH_INDICES = re.compile(r"aten\.max_pool\dd_with_indices\.default")


@cache
def table() -> Mapping[str, Any]:
    """Return the table. Its keys are explained in the file."""
    return tomllib.loads(files(__package__).joinpath("tensorrt.toml").read_text(encoding="utf-8"))


def cover_tensorrt(program: ExportedProgram) -> Covered:
    """Decompose a program as Torch-TensorRT does, and look up its operators.

    The table cannot evaluate the functions that inspect the arguments of a call, so the answer is not certain
    if a call depends on them.
    """
    notes = [f"read from a table of the operators of torch-tensorrt {table()['version']}, which was not run"]
    if all(device in ("cpu", "meta") for device in devices_of_program(program)):
        notes.append("Torch-TensorRT needs a program for a GPU: use a target such as `H100`")
    moved, _ = on_the_cpu(program, "the table")
    moved = with_example_values(moved)
    plain = partly_decomposed(moved, table()["decomposed"], table()["kept"])
    outside, doubts = [], dict[str, set[str]]()
    constant = _constants(plain)
    for visit in walk(plain):
        node, name = visit.node, _name(visit.node)
        # An item is converted if its tuple is, and Torch-TensorRT removes assertions.
        if node.op != "call_function" or node.target is getitem or "_assert" in name or node in constant:
            continue
        if not any(isinstance(value, torch.Tensor) for value in tree_leaves(node.meta.get("val"))):
            continue
        reason, validators = _answer(name, node)
        if reason:
            outside.append((name, node, reason))
        elif validators:
            doubts.setdefault(name, set()).update(validators)
    if doubts:
        listed = ", ".join(f"{name} ({', '.join(sorted(each))})" for name, each in doubts.items())
        notes.append(f"not certain: functions of Torch-TensorRT inspect the arguments of {listed}")
    return Covered((), fallbacks_of(outside, "tensorrt"), "PyTorch", tuple(notes), is_certain=not doubts)


def _constants(program: ExportedProgram) -> set[Node]:
    """Return the calls that depend on no input: Torch-TensorRT computes them before it converts the rest."""
    varying = {node for _, node in user_inputs(program)}
    constant = set()
    for node in program.graph.nodes:
        is_random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if is_random or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
        elif node.op == "call_function":
            constant.add(node)
    return constant


def _name(node: Node) -> str:
    """Return the operator that is converted. Torch-TensorRT removes unused indices of pools."""
    name = operator_name(node)
    if _POOL_WITH_INDICES.fullmatch(name) and all(user.args[1] == 0 for user in node.users):
        return name.replace("_with_indices", "")
    return name


def _answer(name: str, node: Node) -> tuple[str, tuple[str, ...]]:
    """Return why Torch-TensorRT does not convert a call, or "" and the functions that it depends on."""
    known = table()
    for dtype in (value.dtype for value in _tensors(node)):
        if dtype is torch.complex64 and name in known["complex"]:
            return "", ("complex_graph_detection",)
        if dtype in _OUTSIDE:
            return f"TensorRT has no {plain_name(dtype)}", ()
    packet = name.rpartition(".")[0]
    texts = known["converters"].get(name) or known["converters"].get(packet)
    if not texts:
        is_replaced = name in known["replaced"] or packet in known["replaced"]
        return ("" if is_replaced else "Torch-TensorRT has no converter for it"), ()
    is_dynamic = any(isinstance(size, torch.SymInt) for value in _tensors(node) for size in value.shape)
    candidates = [text for text in texts if text.startswith("dynamic") or not is_dynamic]
    if not candidates:
        return "its converter needs static shapes", ()
    inspected = [text.partition(" ")[2] for text in candidates]
    return "", () if "" in inspected else tuple(inspected)


def _tensors(node: Node) -> Iterator[torch.Tensor]:
    for each in (node, *node.all_input_nodes):
        yield from (value for value in tree_leaves(each.meta.get("val")) if isinstance(value, torch.Tensor))
