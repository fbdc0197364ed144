"""List the device literals of a program, and the nodes that fail on another device because of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fakexport._torch.emulation.fake_tensors import FakeTensor
from fakexport._torch.pytree import tree_leaves
from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.exporting.program.devices import DeviceLiteral, devices, devices_of_program
from fakexport.exporting.program.node_names import operator_name
from fakexport.exporting.program.program_copy import copied_graph, graph_modules
from fakexport.exporting.program.retargeting.device_move import DeviceMove, full_name
from fakexport.exporting.program.retargeting.retarget import (
    RetargetError,
    devices_for,
    held_tensors,
    rerun_on,
    retargeted,
)
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix, Label, fold

_ASSERTION = "aten._assert_tensor_metadata.default"


@dataclass(frozen=True)
class Breakage:
    """A node that fails if weights and inputs move to another device but a literal stays unchanged.

    Args:
        literal: A baked-in device literal.
        node: Name of the node that fails. For an assertion, this is the node with the literal.
        operator: Operator of the failing node.
        reason: The reason why a real device rejects the node: `aten.embedding.default gets weight on cuda:0,
            indices on cpu`.
    """

    literal: DeviceLiteral
    node: str
    operator: str
    reason: str


@dataclass(frozen=True)
class DeviceListing:
    """The device literals of a program.

    Args:
        literals: The literals in the order of execution.
        devices: Devices of weights, constants and values, sorted.
        other_device: The device for which failing nodes were determined.
        breakages: Nodes that fail on `other_device` if only weights and inputs are moved.
        diagnostics: FE501 for each line with a literal that breaks a node; then FE502 and FE504.
    """

    literals: tuple[DeviceLiteral, ...]
    devices: tuple[str, ...]
    other_device: str
    breakages: tuple[Breakage, ...]
    diagnostics: tuple[Diagnostic, ...]


@one_at_a_time
def inspect_devices(program: ExportedProgram, *, other_device: str | None = None) -> DeviceListing:
    """List the hard-coded devices of a program, and the nodes that therefore fail on another device.

    To find these nodes, weights and inputs are moved to another device without changing the literals, and the
    graph is run on fake tensors. Each node that fails is traced back to the literals that its inputs come
    from.

    Args:
        program: The program. It is not changed.
        other_device: The device to which everything is moved. Default: `cuda:0` for a program on the CPU,
            otherwise `cpu`.
    Raises:
        ValueError: the device is unknown.
    Reports:
        FE501, FE502, FE504 in `diagnostics`.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2), (torch.zeros(3, 4),), target="H100")
        >>> inspect_devices(program).diagnostics  # No device is hard-coded.
        ()
    """
    present = devices_of_program(program)
    other = full_name(other_device or ("cuda:0" if set(present) <= {"cpu"} else "cpu"))
    literals = devices(program)
    move = DeviceMove.parse(other, present)
    breakages = tuple(_breakages(program, literals, move)) if move.targets else ()
    failures: tuple[Diagnostic, ...] = ()
    try:
        if move.targets:
            retargeted(program, other)
    except RetargetError as error:
        failures = error.diagnostics
    first = {breakage.literal: breakage for breakage in reversed(breakages)}
    found = fold(
        _diagnostic(first[literal], move)
        for literal in literals
        if literal in first and literal.kind != "assertion"  # Assertions only repeat a tensor's device.
    )
    return DeviceListing(literals, present, other, breakages, (*found, *failures))


@dataclass(frozen=True)
class _WithoutLiterals(DeviceMove):
    """A move that changes the devices of tensors, but not the literals in the graph."""

    def of_literal(self, literal: torch.device | str, path: str = "") -> torch.device | str:
        return literal


def _breakages(
    program: ExportedProgram, literals: tuple[DeviceLiteral, ...], move: DeviceMove
) -> Iterator[Breakage]:
    baked: dict[str, list[DeviceLiteral]] = {}
    for literal in literals:
        if literal.is_baked_in and literal.kind != "constant":
            baked.setdefault(literal.node, []).append(literal)
    graph_module = copied_graph(program)
    tensors_only = _WithoutLiterals(move.targets)
    with devices_for(program, move, None):
        rerun = rerun_on(program, graph_module, tensors_only, held_tensors(program, move))
    for found in rerun.findings:
        for literal in _sources(found.node, baked, frozenset(move.targets)) if found.kind == "clash" else ():
            yield Breakage(literal, found.node.name, operator_name(found.node), found.reason)
    yield from _assertions(graph_module, baked)


def _sources(
    node: Node, baked: Mapping[str, list[DeviceLiteral]], left: frozenset[str]
) -> Iterator[DeviceLiteral]:
    """Yield the device literals that determined the devices of a failing node's inputs."""
    seen: set[Node] = set()
    pending = [node]
    while pending:
        for source in pending.pop().all_input_nodes:
            if source in seen or not _is_on(source, left):
                continue
            seen.add(source)
            found = [known for known in baked.get(source.name, ()) if full_name(known.device) in left]
            yield from found
            if not found:
                pending.append(source)


def _is_on(node: Node, places: frozenset[str]) -> bool:
    tensors = (leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, FakeTensor))
    return any(str(tensor.device) in places for tensor in tensors)


def _assertions(graph_module: GraphModule, baked: Mapping[str, list[DeviceLiteral]]) -> Iterator[Breakage]:
    for module in graph_modules(graph_module):
        for node in module.graph.nodes:
            if node.op != "call_function" or operator_name(node) != _ASSERTION:
                continue
            for literal in baked.get(node.name, ()):
                if full_name(node.kwargs["device"]) != full_name(literal.device):
                    reason = f"the program asserts {literal.device} for a tensor on {node.kwargs['device']}"
                    yield Breakage(literal, node.name, _ASSERTION, reason)


def _diagnostic(breakage: Breakage, move: DeviceMove) -> Diagnostic:
    literal = breakage.literal
    text = f"{literal.argument}={literal.device} is fixed to the device used at export"
    labels = () if literal.span is None else (Label(literal.span, text),)
    pairs = ",".join(f"{old}={new}" for old, new in sorted(move.targets.items()))
    return rule("FE501").diagnostic(
        labels=labels,
        notes=(f"on another device, {breakage.reason}",),
        fix=Fix(
            "retarget the whole program",
            is_safe=True,
            command=f"fakexport retarget MODEL.pt2 --to {pairs} -o OUT.pt2",
        ),
        node=literal.node,
        module_path=literal.module_path,
    )
