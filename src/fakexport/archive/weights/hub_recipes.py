"""Derive what an archive stores to bind checkpoints of the Hugging Face hub: recipes and computed weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.archive.weights.expectation import Weight, expected_of_program
from fakexport.archive.weights.layout import (
    ConversionFailed,
    conversions_of,
    hub_layout,
    is_transformers_model,
)
from fakexport.archive.weights.recipe import NotRecordable, cut, recipe_of
from fakexport.emulation.fake import is_fake
from fakexport.emulation.history import Provenance
from fakexport.exporting.program import facts_of
from fakexport.files.documents import Recipe, Shard


def model_of(program: ExportedProgram) -> nn.Module | None:
    """Return the transformers model that a program was captured from, or None.

    The model provides the conversion tables of its checkpoints. The model of a single rank is not returned,
    because checkpoints contain the whole model; recipes cut out the rank's shards instead.
    """
    module = None if facts_of(program).parallel is not None else facts_of(program).model
    return module if is_transformers_model(module) else None


def recipes_of(program: ExportedProgram) -> tuple[Recipe, ...]:
    """Return recipes that convert a checkpoint of `save_pretrained` as `from_pretrained` does.

    Entries that keep their name and data need no recipe. A loaded program has stored recipes. For a program
    of a transformers model, recipes are derived from the model's tables. For any other program, recipes only
    cut out a rank's shards. A conversion that does more than move data has no recipe. Binding a checkpoint
    that needs such a conversion requires transformers; without it, the keys are reported as missing.
    """
    facts = facts_of(program)
    if (known := facts.recipes) is not None:
        return known
    shards = {} if facts.parallel is None else facts.parallel.shards
    if facts.model is None or not is_transformers_model(facts.model):
        return _parts(_whole(shards), shards)
    names = {} if facts.adapter is None else facts.adapter.weights
    with _whole_weights(facts.model, shards):
        return _derived(facts.model, program.state_dict, names, shards)


@contextmanager
def _whole_weights(module: nn.Module, shards: Mapping[str, Shard]) -> Iterator[None]:
    """In this context, a rank's module has full-size weights, because some conversions depend on shapes."""
    parts = [(*_owner(module, name), shard.shape) for name, shard in shards.items()]
    held = [owner._parameters[key] for owner, key, _ in parts]
    for (owner, key, shape), part in zip(parts, held, strict=True):
        dtype = torch.float32 if part is None else part.dtype
        owner._parameters[key] = nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), False)
    try:
        yield
    finally:
        for (owner, key, _), part in zip(parts, held, strict=True):
            owner._parameters[key] = part


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, key = name.rpartition(".")
    return module.get_submodule(path), key


def _derived(
    module: Any, wanted: Mapping[str, object], names: Mapping[str, str], shards: Mapping[str, Shard]
) -> tuple[Recipe, ...]:
    whole = _whole(shards)
    try:
        entries = _hub_entries(module, names, shards)
    # `save_pretrained` raises the same error, so there are no checkpoints that would need recipes.
    except Exception:
        return _parts(whole, shards)
    recipes = [recipe for recipe in whole if recipe.entries[0] not in entries]
    for conversion in hub_layout(entries, module, wanted):
        is_same = not conversion.operations and conversion.entries == (conversion.target,)
        if is_same and conversion.target not in shards:
            continue
        try:
            recipe = recipe_of(conversion, entries)
        except (NotRecordable, ConversionFailed):
            continue
        if any(name in wanted for name, _ in recipe.weights):
            recipes.append(recipe)
    return _parts(recipes, shards)


def _whole(shards: Mapping[str, Shard]) -> list[Recipe]:
    """Return recipes that read each sharded weight from an entry of the same name."""
    return [Recipe((name,), (), ((name, 0),)) for name in shards]


def _parts(recipes: Iterable[Recipe], shards: Mapping[str, Shard]) -> tuple[Recipe, ...]:
    """Extend recipes so that they cut out the rank's shards, and sort them by their weights."""
    return tuple(sorted((cut(recipe, shards) for recipe in recipes), key=lambda recipe: recipe.weights))


@contextmanager
def _conversions_of_quantizer(module: Any) -> Iterator[None]:
    """In this context, transformers also reverts the quantizer's conversions, as for loaded models."""
    from transformers.core_model_loading import PrefixChange

    if getattr(module, "hf_quantizer", None) is None or hasattr(module, "_weight_conversions"):
        yield
        return
    table = conversions_of(module, add_legacy=False)
    module._weight_conversions = [step for step in table if not isinstance(step, PrefixChange)] or None
    try:
        yield
    finally:
        del module._weight_conversions


def _hub_entries(module: Any, names: Mapping[str, str], shards: Mapping[str, Shard]) -> dict[str, Weight]:
    """Return the shapes and dtypes of the entries that `save_pretrained` writes for the whole model."""
    from transformers.core_model_loading import revert_weight_conversion

    state = {
        names.get(name, name): torch.empty(
            shards[name].shape if name in shards else tensor.shape, dtype=tensor.dtype, device="meta"
        )
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor)
    }
    with _conversions_of_quantizer(module):
        written = revert_weight_conversion(module, state)
    return {name: Weight(tuple(tensor.shape), tensor.dtype) for name, tensor in written.items()}


def computed_of(program: ExportedProgram, *, most_bytes: int) -> Mapping[str, torch.Tensor | None]:
    """Return the values of weights that a checkpoint may omit, so that a program's archive can store them.

    The result maps names to real CPU tensors, or to None for a weight that is larger than `most_bytes`. For a
    program from `export`, its model computes the values. A loaded program has the values in its archive.
    """
    if (known := facts_of(program).computed) is not None:
        return known
    model, weights = model_of(program), expected_of_program(program).weights
    small = {name: weight for name, weight in weights.items() if weight.nbytes <= most_bytes}
    large = _candidates(model, {name: weight for name, weight in weights.items() if name not in small})
    provenance = _provenance(model, large)
    left_out = {name: None for name, tensor in large.items() if provenance.dependence_of(tensor) is None}
    return {**initial_values(model, small), **left_out}


def initial_values(model: nn.Module | None, missing: Mapping[str, Weight]) -> dict[str, torch.Tensor]:
    """Return the values of missing weights for which `from_pretrained` keeps the constructor's values.

    These are weights that the class does not save (`_keys_to_ignore_on_save`) or allows to be missing
    (`_keys_to_ignore_on_load_missing`). Their values must not depend on random numbers, even seeded ones, or
    on other weights. Marian's position tables are an example. The result is empty for models of other
    libraries.
    """
    from fakexport.exporting.capture import value_or_reason  # Needed only to read a model.

    named = _candidates(model, missing)
    provenance = _provenance(model, named)
    outcomes = {name: value_or_reason(tensor, provenance) for name, tensor in named.items()}
    return {name: value for name, value in outcomes.items() if isinstance(value, torch.Tensor)}


def _candidates(model: nn.Module | None, missing: Mapping[str, Weight]) -> dict[str, torch.Tensor]:
    """Return the fake tensors of the missing weights that the model's class allows checkpoints to omit."""
    if model is None or not is_transformers_model(model):
        return {}
    unsaved = frozenset(getattr(model, "_keys_to_ignore_on_save", None) or ())
    patterns = tuple(getattr(model, "_keys_to_ignore_on_load_missing", None) or ())
    state = model.state_dict(keep_vars=True)
    return {
        name: state[name].detach()
        for name, weight in missing.items()
        if name in state
        and is_fake(state[name])
        and tuple(state[name].shape) == weight.shape
        and (name in unsaved or any(re.search(pattern, name) for pattern in patterns))
    }


def _provenance(model: nn.Module | None, named: Mapping[str, torch.Tensor]) -> Provenance:
    parameters = {} if model is None else dict(model.named_parameters())
    others = {name: tensor for name, tensor in parameters.items() if name not in named}
    return Provenance(others, is_seed_enough=False)
