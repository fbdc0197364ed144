"""Record conversions of checkpoint entries to weights, so that no model library is needed to repeat them.

When transformers loads a checkpoint from the hub, it renames entries, stacks experts, and splits fused
weights. A recipe records these conversions as operators that only move data. It can be replayed without
transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from fakexport._torch.tracing.dispatch_observer import kernels_observed
from fakexport.archive.weights.expectation import Weight
from fakexport.archive.weights.layout import Conversion, ConversionFailed, Read
from fakexport.error import FakexportError, first_line
from fakexport.files.documents import Numbers, Recipe, Shard, Step

Tensors = Sequence[torch.Tensor]


class NotRecordable(FakexportError, ValueError):
    """A conversion does more than move data, so a recipe cannot record it. The message is a single line."""


_MOST_NUMBERS = 10_000


def _split(values: Tensors, numbers: Numbers) -> Tensors:
    return torch.split(values[0], list(numbers[1:]), dim=numbers[0])


OPERATORS: Mapping[str, Callable[[Tensors, Numbers], Tensors]] = {
    "cat": lambda values, numbers: (torch.cat(list(values), *numbers),),
    "permute": lambda values, numbers: (values[0].permute(numbers),),
    "reshape": lambda values, numbers: (values[0].reshape(numbers),),
    "select": lambda values, numbers: (values[0].select(*numbers),),
    "slice": lambda values, numbers: (torch.narrow(values[0], *numbers),),
    "split": _split,
    "squeeze": lambda values, numbers: (values[0].squeeze(*numbers),),
    "stack": lambda values, numbers: (torch.stack(list(values), *numbers),),
    "transpose": lambda values, numbers: (values[0].transpose(*numbers),),
    "unsqueeze": lambda values, numbers: (values[0].unsqueeze(*numbers),),
}
"""Implementations of `documents.recipe.OPERATORS`, which only move elements. Numbers: dimensions, then sizes.
"""


def by_recipes(recipes: Collection[Recipe], names: Collection[str]) -> list[Conversion]:
    """Return conversions: the recipes whose checkpoint entries all exist, and each other entry unchanged."""
    present = set(names)
    found = [recipe for recipe in recipes if present.issuperset(recipe.entries)]
    used = {name for recipe in found for name in recipe.entries}
    same = (Recipe((name,), (), ((name, 0),)) for name in names if name not in used)
    return [_conversion(recipe) for recipe in (*found, *same)]


def _conversion(recipe: Recipe) -> Conversion:
    return Conversion(
        entries=recipe.entries,
        target=recipe.weights[0][0],
        convert=lambda read: _made(recipe, read),
        operations=tuple(step.operator for step in recipe.steps),
    )


def _made(recipe: Recipe, read: Read) -> dict[str, torch.Tensor]:
    values = [read(name) for name in recipe.entries]
    most = sum(value.numel() for value in values)
    try:
        for step in recipe.steps:
            if len(step.numbers) > _MOST_NUMBERS:  # Empty pieces take memory too, so limit their number.
                raise ConversionFailed(f"{step.operator} produces more than {_MOST_NUMBERS} pieces")
            made = OPERATORS[step.operator]([values[index] for index in step.values], step.numbers)
            # A malicious recipe could repeat entries to exhaust memory.
            if sum(value.numel() for value in made) > most:
                raise ConversionFailed(f"{step.operator} produces more elements than the entries have")
            values.extend(made)
        return {name: values[index] for name, index in recipe.weights}
    except (IndexError, RuntimeError, TypeError) as error:
        first = first_line(error)
        raise ConversionFailed(f"the archive's conversion failed on these entries: {first}") from error


def recipe_of(conversion: Conversion, entries: Mapping[str, Weight]) -> Recipe:
    """Record a conversion as a recipe by running it on meta tensors. Raise if it computes values."""
    if not conversion.operations:
        return Recipe(conversion.entries, (), ((conversion.target, 0),))
    log = _Log()
    for name in conversion.entries:
        log.add(torch.empty(entries[name].shape, dtype=entries[name].dtype, device="meta"))
    read = dict(zip(conversion.entries, log.values, strict=True)).__getitem__
    with kernels_observed(log):
        made = conversion.convert(read)
    return Recipe(
        conversion.entries, tuple(log.steps), tuple((name, log.index(value)) for name, value in made.items())
    )


def cut(recipe: Recipe, shards: Mapping[str, Shard]) -> Recipe:
    """Extend a recipe so that it reduces each weight to the shard of a rank."""
    steps = list(recipe.steps)
    count = len(recipe.entries) + sum(len(s.numbers) - 1 if s.operator == "split" else 1 for s in steps)
    weights = []
    for name, index in recipe.weights:
        if (shard := shards.get(name)) is not None:
            parts = [Step("slice", (index,), (shard.dim, a, b - a)) for a, b in shard.ranges]
            steps += parts
            index, count = count, count + len(parts)
            if len(parts) > 1:
                steps.append(Step("cat", tuple(range(index, count)), (shard.dim,)))
                index, count = count, count + 1
        weights.append((name, index))
    return Recipe(recipe.entries, tuple(steps), tuple(weights))


class _Log:
    """Record each operator of a conversion as a step of a recipe."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.steps: list[Step] = []
        self._indices: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []

    def add(self, value: torch.Tensor) -> None:
        self._indices[id(value)] = len(self.values)
        self.values.append(value)

    def index(self, value: torch.Tensor) -> int:
        if id(value) not in self._indices:
            raise NotRecordable("a weight is not derived from a checkpoint entry")
        return self._indices[id(value)]

    def __call__(
        self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[..., Any]
    ) -> Any:
        result = run(*args, **kwargs)
        self._write_down(kernel, args, result)
        return result

    def _write_down(self, operator: Any, args: Sequence[Any], result: Any) -> None:
        name = operator.name().partition("::")[2]
        if name in _SAME:
            self._indices[id(result)] = self.index(args[0])
            self._kept.append(result)
        elif name in _WORDS:
            word, numbers = _WORDS[name](args, result)
            values = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            self.steps.append(Step(word, tuple(map(self.index, values)), tuple(map(int, numbers))))
            for value in result if isinstance(result, (list, tuple)) else [result]:
                self.add(value)
        else:
            raise NotRecordable(f"{name} does more than move data")


# These operators return the same elements, so the result gets the index of the argument. Layout is ignored.
_SAME = frozenset({"alias", "clone", "detach"})


def _dim(args: Sequence[Any], place: int = 1) -> int:
    return int(args[place]) if len(args) > place else 0


def _sliced(args: Sequence[Any], result: torch.Tensor) -> tuple[str, Numbers]:
    dim, start = _dim(args), (args[2] if len(args) > 2 else None) or 0
    if len(args) > 4 and args[4] != 1:
        raise NotRecordable("slice has a step other than 1")
    size = args[0].shape[dim]
    return "slice", (dim, start + size if start < 0 else start, result.shape[dim])


def _cut(args: Sequence[Any], result: Tensors) -> tuple[str, Numbers]:
    dim = _dim(args, 2)
    return "split", (dim, *(piece.shape[dim] for piece in result))


# torch's operator name -> function that takes the operator's arguments and result, and returns the name and
# the numbers of the step in the recipe.
_WORDS: Mapping[str, Callable[[Any, Any], tuple[str, Sequence[int]]]] = {
    "cat": lambda args, result: ("cat", (_dim(args),)),
    "permute": lambda args, result: ("permute", args[1]),
    "select.int": lambda args, result: ("select", args[1:3]),
    "slice.Tensor": _sliced,
    "split.Tensor": _cut,
    "split_with_sizes": _cut,
    "squeeze.dim": lambda args, result: ("squeeze", (args[1],)),
    "stack": lambda args, result: ("stack", (_dim(args),)),
    "t": lambda args, result: ("transpose", (0, 1)),
    "transpose.int": lambda args, result: ("transpose", args[1:3]),
    "unsqueeze": lambda args, result: ("unsqueeze", (args[1],)),
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "_reshape_alias"),
        lambda args, result: ("reshape", tuple(result.shape)),
    ),
}
