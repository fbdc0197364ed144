"""Operators that a program runs as in training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operator_schema import argument_names, argument_values
from fakexport.diagnostics import Span
from fakexport.program.node_names import operator_name
from fakexport.program.walk import walk

_MODES = frozenset({"train", "training"})
_PROBABILITIES = ("p", "dropout_p", "dropout")
_STATISTICS = "running_mean"


@dataclass(frozen=True)
class TrainingOperator:
    """An operator whose result is another one in evaluation.

    Args:
        node: Name of the graph node.
        operator: `aten.dropout.default`.
        argument: The argument that says so: `train=True`, `dropout_p=0.1`.
        span: The user's line, if the node has one.
        module_path: Path of the module that runs it.
    """

    node: str
    operator: str
    argument: str
    span: Span | None
    module_path: str


def training_operators(program: ExportedProgram) -> tuple[TrainingOperator, ...]:
    """Return the operators whose arguments ask for training, in the order of execution.

    These are dropout with a probability above 0, in attention and in recurrent layers too, randomized
    activations, and batch norm that has running statistics and does not use them. Batch norm without running
    statistics computes the same in both modes.
    """
    return tuple(
        TrainingOperator(visit.node.name, operator_name(visit.node), argument, visit.span, visit.module_path)
        for visit in walk(program)
        for argument in _training_argument(visit.node)
    )


def _training_argument(node: Node) -> Iterator[str]:
    """Yield the one argument that asks for training, or nothing."""
    if node.op != "call_function":
        return
    names = argument_names(node.target)
    if not names:
        return
    values = argument_values(node.target, node.args, node.kwargs)
    probability = next((name for name in _PROBABILITIES if isinstance(values.get(name), float)), None)
    mode = next((name for name in names if name in _MODES), None)
    if mode is not None:
        has_effect = probability is None or values[probability] > 0
        if values[mode] is True and has_effect and values.get(_STATISTICS, node) is not None:
            yield f"{mode}=True"
    elif probability == "dropout_p" and values[probability] > 0:
        yield f"dropout_p={values[probability]}"
