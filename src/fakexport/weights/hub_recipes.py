"""How checkpoints in the layout of the Hugging Face hub become the weights of a program, for its archive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.documents import Recipe, Shard
from fakexport.program import facts_of
from fakexport.weights.expectation import Weight
from fakexport.weights.layout import ConversionFailed, conversions_of, hub_layout, is_transformers_model
from fakexport.weights.recipe import NotRecordable, cut, recipe_of


def model_of(program: ExportedProgram) -> nn.Module | None:
    """Return the transformers model that a program was captured from, which knows its layouts; or None.

    That of one rank does not: its checkpoints are those of the whole model, and recipes cut the rank's parts.
    """
    module = None if facts_of(program).parallel is not None else facts_of(program).model
    return module if is_transformers_model(module) else None


def recipes_of(program: ExportedProgram) -> tuple[Recipe, ...]:
    """Return how `from_pretrained` converts a checkpoint of `save_pretrained` into a program's weights.

    Entries that have the name of their weight and stay as they are need no recipe. They are
    derived for a transformers module; a loaded program has its own; any other program has those that cut the
    parts of a rank. A conversion that does more than move data has no recipe: binding it needs transformers,
    or reports what is missing.
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
    """Give the module of a rank weights of the whole shapes: some conversions compare with the shapes."""
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
    except Exception:  # `save_pretrained` raises the same: there is no checkpoint that would need a recipe.
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
    """Return recipes for entries that are whole weights of the module, under their names in it."""
    return [Recipe((name,), (), ((name, 0),)) for name in shards]


def _parts(recipes: Iterable[Recipe], shards: Mapping[str, Shard]) -> tuple[Recipe, ...]:
    """Return the recipes for the parts of a rank, in the order of their weights."""
    return tuple(sorted((cut(recipe, shards) for recipe in recipes), key=lambda recipe: recipe.weights))


@contextmanager
def _conversions_of_quantizer(module: Any) -> Iterator[None]:
    """Let transformers revert what the quantizer of a model adds, as it does for a model that it loaded."""
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
    """Return the entries that `save_pretrained` writes of the whole model, from shapes alone."""
    from transformers.core_model_loading import revert_weight_conversion

    state = {
        names.get(name, name): torch.empty(
            shards[name].shape if name in shards else tensor.shape, dtype=tensor.dtype, device="meta"
        )
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }
    with _conversions_of_quantizer(module):
        written = revert_weight_conversion(module, state)
    return {name: Weight(tuple(tensor.shape), tensor.dtype) for name, tensor in written.items()}
