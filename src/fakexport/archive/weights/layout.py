"""Map checkpoint entries to a model's weights, unchanged or converted with transformers' tables."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fakexport.error import FakexportError, first_line

Read = Callable[[str], torch.Tensor]
Convert = Callable[[Read], dict[str, torch.Tensor]]


class ConversionFailed(FakexportError, ValueError):
    """transformers could not build a weight from these entries. The message is a single line."""


@dataclass(frozen=True)
class Conversion:
    """One conversion of checkpoint entries to weights.

    Args:
        entries: Names of all entries that the conversion reads.
        target: Name of the resulting weight, or of the first of several weights.
        convert: Function that returns the weights by name. Its argument is a function that returns the tensor
            of an entry, which can also be a meta or fake tensor.
        operations: The operations, such as `MergeModulelist(dim=0)`, `Concatenate(dim=1)`; empty if entries
            are only renamed.
    """

    entries: tuple[str, ...]
    target: str
    convert: Convert = field(repr=False)
    operations: tuple[str, ...] = ()


def as_it_is(names: Collection[str]) -> list[Conversion]:
    """For each entry, return a conversion that maps it unchanged to the weight of the same name."""
    return [_renamed(name, name) for name in names]


def is_transformers_model(model: nn.Module | None) -> bool:
    """Return whether transformers has conversion tables for the module."""
    library = sys.modules.get("transformers")
    return library is not None and isinstance(model, library.PreTrainedModel)


def hub_layout(names: Collection[str], model: Any, wanted: Mapping[str, object]) -> list[Conversion]:
    """Return the conversions with which transformers loads these entries, using its tables and operations.

    This reimplements the first half of `transformers.core_model_loading.convert_and_load_state_dict_in_model`
    (transformers 5.23). The second half casts dtypes, starts threads and changes the model.
    """
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key

    mapping = conversions_of(model)
    renamings = [step for step in mapping if isinstance(step, WeightRenaming)]
    converters = [step for step in mapping if isinstance(step, WeightConverter)]
    by_pattern = {pattern: step for step in converters for pattern in step.source_patterns}
    state = dict.fromkeys(wanted, True)
    single: list[Conversion] = []
    collected: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(names, key=dot_natural_key):
        target, pattern = _target(name, renamings, converters, model.base_model_prefix, state)
        if pattern is None or target not in state:
            single.append(_renamed(name, target if target in state else name))
        else:
            collected.setdefault(target, []).append((name, pattern))
    return [*single, *_converted(collected, by_pattern, model)]


def conversions_of(model: Any, **options: bool) -> list[Any]:
    """Return transformers' conversion table for a model, including entries that its quantizer adds.

    If the table stacks experts, their fp8 scales are stacked too. Conversions that compute values are left
    out.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    table = list(get_model_conversion_mapping(model, **options))
    quantizer = getattr(model, "hf_quantizer", None)
    if quantizer is None:
        return table
    known = {id(step) for step in table}
    moves = {type(op) for step in table if isinstance(step, WeightConverter) for op in step.operations}
    more = [
        step
        for step in quantizer.update_weight_conversions(list(table), model)
        if id(step) not in known
        and isinstance(step, WeightConverter)
        and all(type(op) in moves for op in step.operations)
    ]
    return [*table, *more]


def _target(
    name: str, renamings: list[Any], converters: list[Any], prefix: str, state: dict[str, bool]
) -> tuple[str, str | None]:
    from transformers.core_model_loading import rename_source_key

    target, pattern = rename_source_key(name, renamings, converters, prefix, state)
    if target not in state and name in state:
        return str(name), None
    return target, pattern


def _converted(
    collected: Mapping[str, list[tuple[str, str]]], by_pattern: Mapping[str, Any], model: Any
) -> Iterator[Conversion]:
    for target, sources in collected.items():
        step = by_pattern[sources[0][1]]
        yield Conversion(
            entries=tuple(name for name, _ in sources),
            target=target,
            convert=_Converter(target, tuple(sources), step, model),
            operations=tuple(map(repr, step.operations)),
        )


@dataclass(frozen=True)
class _Converter:
    """The function that runs a converter of transformers."""

    target: str
    sources: tuple[tuple[str, str], ...]
    step: Any
    model: Any

    def __call__(self, read: Read) -> dict[str, torch.Tensor]:
        step = copy.deepcopy(self.step)
        for name, pattern in self.sources:
            step.add_tensor(self.target, name, pattern, read(name))
        try:
            with torch.no_grad():
                made = step.convert(self.target, model=self.model, config=self.model.config)
        except Exception as error:
            operations = ", ".join(map(repr, self.step.operations))
            raise ConversionFailed(f"{operations} of transformers failed: {first_line(error)}") from error
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def _renamed(name: str, target: str) -> Conversion:
    return Conversion((name,), target, lambda read: {target: read(name)})
