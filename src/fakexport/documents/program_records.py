"""Records of an archive, free of code and of torch: recipes of weights, parameters, adapters and shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias, get_args

Numbers = tuple[int, ...]

OPERATORS = frozenset(
    {"cat", "permute", "reshape", "select", "slice", "split", "squeeze", "stack", "transpose", "unsqueeze"}
)
"What a recipe may do: move elements. `weights.recipe` implements each operator."


@dataclass(frozen=True)
class Step:
    """One operator.

    Args:
        operator: One of `OPERATORS`.
        values: What it is applied to: indices of the entries, followed by those of earlier steps' results.
        numbers: Its dimensions and sizes.
    """

    operator: str
    values: tuple[int, ...]
    numbers: Numbers


@dataclass(frozen=True)
class Recipe:
    """Builds weights from entries.

    Args:
        entries: Names in the checkpoint. All of them are used.
        steps: In order; none for a mere renaming.
        weights: The name of each weight that comes out, and the index of its value.
    """

    entries: tuple[str, ...]
    steps: tuple[Step, ...]
    weights: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Shard:
    """The part of a weight that is on one rank: ranges of one dimension, one after the other.

    Args:
        shape: Shape of the full weight.
        dim: The dimension that is cut.
        ranges: Start and end of each range, in elements of the dimension.
    """

    shape: tuple[int, ...]
    dim: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        size = sum(end - start for start, end in self.ranges)
        return (*self.shape[: self.dim], size, *self.shape[self.dim + 1 :])


@dataclass(frozen=True)
class ParallelRecord:
    """A rank among those that share a model.

    Args:
        degrees: Of parallelism, `tp=8`.
        rank: From 0.
        ranks: Processes that run the model together, each with its own program.
        shards: The part of each sharded weight by name; empty for a stored program, whose recipes have it.
        styles: The style that the plan has for each module and each weight by name; empty likewise.
        unused_rules: Rules of the plan that name nothing in the model.
    """

    degrees: str
    rank: int
    ranks: int
    shards: Mapping[str, Shard] = field(default_factory=dict, compare=False, repr=False)
    styles: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    unused_rules: tuple[str, ...] = field(default=(), compare=False, repr=False)


Scalar: TypeAlias = "bool | int | float | str | None"
ParameterKind = Literal["positional", "any", "keyword", "args", "kwargs"]
PARAMETER_KINDS: tuple[str, ...] = get_args(ParameterKind)


@dataclass(frozen=True)
class Parameter:
    """One parameter of `forward`.

    Args:
        name: Its name.
        kind: How it is passed: by position alone, by position or name, by name alone; `args`: it takes the
            rest of the positional arguments; `kwargs`: of the named ones.
        defaults: Its default, if it has one that is a number, a text or None; else empty.
    """

    name: str
    kind: ParameterKind
    defaults: tuple[Scalar, ...] = ()


AdapterMode = Literal["apart", "merged", "inputs"]
ADAPTER_MODES: tuple[str, ...] = get_args(AdapterMode)


@dataclass(frozen=True)
class AdapterRecord:
    """How a program needs its adapter.

    Args:
        mode: `apart`: the tensors of the adapter are weights of the program. `merged`: they are merged into
            the weights of the base model when these are bound. `inputs`: they are inputs.
        name: What the names of its tensors begin with, before a period; empty for the only adapter.
        weights: Name of a weight in a checkpoint, by its name in the module, where they differ. A
            stored program has the names of the checkpoint.
        inputs: The inputs that are tensors of the adapter; empty for a stored program.
    """

    mode: AdapterMode
    name: str = ""
    weights: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    inputs: frozenset[str] = field(default=frozenset(), compare=False, repr=False)


UnboundReason = Literal["parameter", "random", "unknown"]
UNBOUND_REASONS: tuple[str, ...] = get_args(UnboundReason)


@dataclass(frozen=True)
class UnboundName:
    """A constant without a value in its program, because the model's code does not determine one.

    Args:
        name: Its name in `program.constants`: `model.rotary.scale`, `lifted_tensor_0`.
        reason: `parameter`: its value is, or was computed from, that of a weight, which a checkpoint
            brings; `random`: it was drawn without a seed; `unknown`: it cannot be computed here.
        detail: Why, as a sentence without capital and period.
        weight: The parameter, or the persistent buffer with which memory is shared; None for other reasons.
        operator: The operator that read the weight or drew the numbers, where there is one.
        recipe: Digest of the operators that compute it, "" if they are unknown.
    """

    name: str
    reason: UnboundReason
    detail: str
    weight: str | None = None
    operator: str | None = None
    recipe: str = ""

    @classmethod
    def of(cls, constant: UnboundName) -> UnboundName:
        """Return what an archive stores of one: all but the span, which is a path of this machine."""
        return cls(**{each.name: getattr(constant, each.name) for each in fields(cls)})
