"""Data that archives store in addition to code: weight recipes, parameters, adapters and shards.

Does not import torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args

from .document_error import DocumentError
from .typed_json import Most, Name, Sentence, Size, identifier, one_of

Numbers = tuple[int, ...]

OPERATORS = frozenset(
    {"cat", "permute", "reshape", "select", "slice", "split", "squeeze", "stack", "transpose", "unsqueeze"}
)
"""Operators of recipes. They only move elements. `weights.recipe` implements them."""


@dataclass(frozen=True)
class Step:
    """One operator of a recipe.

    Args:
        operator: Name of the operator, such as `transpose`.
        values: Indices of the operands in a list of the checkpoint entries, followed by the results of
            earlier steps.
        numbers: The dimensions and sizes that are passed to the operator.
    """

    operator: Annotated[str, one_of(OPERATORS, "recipe operator")]
    values: tuple[Size, ...]
    numbers: Numbers


@dataclass(frozen=True)
class Recipe:
    """Instructions to compute weights from checkpoint entries.

    Args:
        entries: Names in the checkpoint. All of them are used.
        steps: Operators in order; empty if entries are only renamed.
        weights: The name of each weight, and the index of its value. `Step.values` describes the list.
    """

    entries: tuple[Name, ...]
    steps: tuple[Step, ...]
    weights: tuple[tuple[Name, Size], ...]


@dataclass(frozen=True)
class Shard:
    """The part of a weight that one rank stores: one or several ranges of one dimension.

    Args:
        shape: Shape of the full weight.
        dim: The sharded dimension.
        ranges: Start and end index of each range along the dimension.
    """

    shape: tuple[int, ...]
    dim: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the part that the rank stores."""
        size = sum(end - start for start, end in self.ranges)
        return (*self.shape[: self.dim], size, *self.shape[self.dim + 1 :])


@dataclass(frozen=True)
class ParallelRecord:
    """One rank of a model that is split across processes.

    Args:
        degrees: Degrees of parallelism, such as `tp=8`.
        rank: Index of the rank, from 0.
        ranks: Number of processes that run the model together, each with its own program.
        shards: Name of each sharded weight -> the rank's part of it. Empty for a program that was read from
            an archive, because its recipes contain the parts.
        styles: Name of a module or weight -> its style in the parallel plan. Empty for a program that was
            read from an archive.
        unused_rules: Rules of the plan that match nothing in the model.
    """

    degrees: Sentence
    rank: Size
    ranks: Size
    shards: Mapping[str, Shard] = field(default_factory=dict, compare=False, repr=False)
    styles: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    unused_rules: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class SizeRange:
    """The sizes of one dimension of an input for which callers use a program.

    Args:
        input: Name of the input.
        dim: Index of the dimension, from 0.
        min: Smallest size.
        max: Largest size; None without a bound.
        same: Other dimensions that have the same size in each call, such as `attention_mask.0`. Empty if the
            user gave the size no name. Not stored in archives.
    """

    input: Name
    dim: Size
    min: Size
    max: Size | None = None
    same: tuple[str, ...] = field(default=(), compare=False)

    def __contains__(self, size: int) -> bool:
        return self.min <= size and (self.max is None or size <= self.max)

    @property
    def place(self) -> str:
        """The dimension as the user writes it, such as `input_ids.1`."""
        return f"{self.input}.{self.dim}"

    @property
    def bounds(self) -> str:
        """The sizes as the user writes them, such as `1` or `2..32`."""
        if self.min == self.max:
            return str(self.min)
        return f"{self.min}..{'' if self.max is None else self.max}"

    def __str__(self) -> str:
        return f"{self.place}={self.bounds}"


def sizes_text(sizes: Iterable[SizeRange]) -> str:
    """Return the sizes as the user writes them: `input_ids.0=1 input_ids.1=2..64`."""
    return " ".join(map(str, sizes))


def are_divided(sizes: Iterable[tuple[SizeRange, ...]]) -> bool:
    """Return whether at most one of several programs takes any call, according to their sizes."""
    found = list(sizes)
    return len(found) > 1 and all(itertools.starmap(_are_apart, itertools.combinations(found, 2)))


def _are_apart(one: tuple[SizeRange, ...], other: tuple[SizeRange, ...]) -> bool:
    places = {each.place: each for each in other}
    return any(
        (rival := places.get(each.place)) is not None and each.min not in rival and rival.min not in each
        for each in one
    )


@dataclass(frozen=True)
class StageRecord:
    """One pipeline stage of a program that was cut.

    Args:
        stage: Index of the stage, from 0.
        stages: Number of stages.
        start: Path of the module at which the stage begins; "" for the first stage.
        outputs: Names of the outputs of the whole program. A stage returns some of these, and values that are
            inputs of later stages, under the same names.
    """

    stage: Size
    stages: Size
    start: Name
    outputs: Annotated[tuple[Name, ...], Most(100_000)] = ()


Scalar: TypeAlias = bool | int | float | str | None


def _scalar(value: Any) -> Scalar:
    if value is not None and type(value) not in (bool, int, float, str):
        raise DocumentError("expected a number, a string or null")
    return cast("Scalar", value)


ParameterKind = Literal["positional", "any", "keyword", "args", "kwargs"]


@dataclass(frozen=True)
class Parameter:
    """One parameter of `forward`.

    Args:
        name: Name of the parameter.
        kind: How the argument is passed: by position only, by position or name (`any`), or by name only.
            `args` takes the remaining positional arguments, and `kwargs` the remaining named arguments.
        defaults: A tuple with the default value if that is a number, a string or None; otherwise empty.
    """

    name: Annotated[str, identifier]
    kind: ParameterKind
    defaults: Annotated[tuple[Annotated[Scalar, _scalar], ...], Most(1)] = ()


AdapterMode = Literal["separate", "merged", "inputs"]
ADAPTER_MODES: tuple[str, ...] = get_args(AdapterMode)


@dataclass(frozen=True)
class AdapterRecord:
    """How a program uses its LoRA adapter.

    Args:
        mode: `separate`: the adapter's tensors are weights of the program. `merged`: `bind` merges them into
            the weights of the base model. `inputs`: they are inputs of the program.
        name: Prefix of the adapter's tensor names, without the period; "" if there is only one adapter.
        weights: Name in the module -> name in the checkpoint, for weights whose names differ. Empty for a
            program that was read from an archive, because it uses the names of the checkpoint.
        inputs: Names of the inputs that are tensors of the adapter. Empty for a program that was read from an
            archive.
    """

    mode: AdapterMode
    name: Sentence = ""
    weights: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    inputs: frozenset[str] = field(default=frozenset(), compare=False, repr=False)


UnboundReason = Literal["parameter", "random", "unknown"]


@dataclass(frozen=True)
class UnboundName:
    """A constant without a value in the program: a checkpoint determines it, or it is random or unknown.

    Args:
        name: Name in `program.constants`, such as `model.rotary.scale` or `lifted_tensor_0`.
        reason: `parameter`: it is a weight or was computed from one, so a checkpoint determines the value.
            `random`: it was drawn without a seed. `unknown`: fakexport could not compute the value.
        detail: Why the constant has no value, as a clause without a period.
        weight: For `parameter`: the parameter, or the persistent buffer that it shares memory with. Otherwise
            None.
        operator: The operator that read the weight or drew the numbers, if known.
        recipe: Digest of the operators that compute the constant; "" if they are unknown.
    """

    name: Name
    reason: UnboundReason
    detail: Sentence
    weight: Name | None = None
    operator: Name | None = None
    recipe: str = ""

    @classmethod
    def of(cls, constant: UnboundName) -> UnboundName:
        """Copy the fields that an archive stores. The span is not copied: it is a path on this machine."""
        return cls(**{each.name: getattr(constant, each.name) for each in fields(cls)})
