"""Find operators that a program runs in training mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch.fx import Node

from fakexport._torch.operators.operator_schema import argument_names, argument_values
from fakexport.exporting.program.walk import Visit

_MODES = frozenset({"train", "training"})
_PROBABILITIES = ("p", "dropout_p", "dropout")
_STATISTICS = "running_mean"


def training_operators(visits: Iterable[Visit]) -> Iterator[tuple[Visit, str]]:
    """Yield nodes whose operators run in training mode, with the text of the argument that enables it.

    These are dropout with a probability above 0 (including attention and recurrent layers), randomized
    activations, and batch norm that does not use its running statistics. Batch norm that has no running
    statistics is not included, because it computes the same result in both modes.
    """
    for visit in visits:
        yield from ((visit, argument) for argument in _training_argument(visit.node))


def _training_argument(node: Node) -> Iterator[str]:
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
