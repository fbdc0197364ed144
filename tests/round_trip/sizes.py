"""Sizes that an export did not see: others for every dimension that its programs leave open."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument

__all__ = ["Shapes", "accepts", "dynamic_dims", "other_sizes"]

Shapes = dict[str, tuple[int, ...]]

# Steps from the example size, the most wanted first: odd sizes, smaller and larger.
_STEPS = (-5, 7, 1, 3, -1, -2, 8, -8, 16, 32, -16, 64, 96, 128, 256)


def dynamic_dims(program: ExportedProgram) -> dict[str, tuple[int, ...]]:
    """Input name -> the dimensions that vary in the program."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument):
            shape = nodes[spec.arg.name].meta["val"].shape
            found[spec.arg.name] = tuple(i for i, size in enumerate(shape) if not isinstance(size, int))
    return found


def accepts(program: ExportedProgram, inputs: Mapping[str, torch.Tensor]) -> bool:
    """Whether the sizes are in the ranges of the program and fulfil torch's guards, which are on sizes."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for name, tensor in inputs.items():
        for wanted, size in zip(nodes[name].meta["val"].shape, tensor.shape, strict=True):
            if isinstance(wanted, int):
                if wanted != size:
                    return False
            elif (bounds := program.range_constraints.get(wanted.node.expr)) is not None and not (
                bounds.lower <= size <= bounds.upper
            ):
                return False
    names = {"L": inputs, "math": math, "torch": torch}
    return all(eval(guard, names) for guard in program._guards_code if "flat_args" not in guard)


@dataclass(frozen=True)
class _Open:
    """Dimensions that vary and have one size in the example, which all change together."""

    size: int
    places: tuple[tuple[str, int], ...]


def other_sizes(
    example: Shapes, programs: list[ExportedProgram], works: Callable[[Shapes], bool]
) -> list[Shapes]:
    """Two sets of shapes in which what varies in all programs differs from the example, as far as it can.

    Args:
        example: Shapes of the example inputs.
        programs: Exported with them.
        works: Whether the model and the guards of the programs take these shapes.
    Returns:
        Two different sets; one, if only one works; none, if nothing varies or the model takes nothing else.
    """
    dims = [dynamic_dims(program) for program in programs]
    varying: dict[int, list[tuple[str, int]]] = {}
    for name, shape in example.items():
        for index in set.intersection(*(set(found.get(name, ())) for found in dims)):
            varying.setdefault(shape[index], []).append((name, index))
    sets = [dict(example), dict(example)]
    for size, places in sorted(varying.items()):
        dimension = _Open(size, tuple(places))
        chosen = 0
        for candidate in _candidates(size):
            changed = _changed(sets[chosen], dimension, candidate)
            if works(changed):
                sets[chosen] = changed
                chosen += 1
            if chosen == len(sets):
                break
        if chosen == 1 and works(again := _changed(sets[1], dimension, _size(sets[0], dimension))):
            sets[1] = again
    distinct: list[Shapes] = []
    for shapes in sets:
        if shapes != example and shapes not in distinct:
            distinct.append(shapes)
    return distinct


def _candidates(size: int) -> Iterator[int]:
    small = (size + step for step in _STEPS if size + step > 1)
    yield from (1 + step for step in (2, 4, 3, 5, 7, 1)) if size == 2 else small
    if size > 2:
        yield from (2 * size, size // 2, 3 * size)


def _changed(shapes: Shapes, dimension: _Open, size: int) -> Shapes:
    changed = {name: list(shape) for name, shape in shapes.items()}
    for name, index in dimension.places:
        changed[name][index] = size
    return {name: tuple(shape) for name, shape in changed.items()}


def _size(shapes: Shapes, dimension: _Open) -> int:
    name, index = dimension.places[0]
    return shapes[name][index]


def as_shapes(inputs: Mapping[str, Any]) -> Shapes:
    """The shapes of the tensors among the inputs."""
    return {name: tuple(value.shape) for name, value in inputs.items() if isinstance(value, torch.Tensor)}
