"""How checkpoints in the layout of the Hugging Face hub become the weights of a program, for its archive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.documents import Recipe
from fakexport.program import facts_of
from fakexport.weights.expectation import Weight
from fakexport.weights.layout import ConversionFailed, hub_layout, is_transformers_model
from fakexport.weights.recipe import NotRecordable, recipe_of


def model_of(program: ExportedProgram) -> nn.Module | None:
    """Return the transformers model that a program was captured from, which knows its layouts; or None."""
    module = facts_of(program).model
    return module if is_transformers_model(module) else None


def recipes_of(program: ExportedProgram) -> tuple[Recipe, ...]:
    """Return how `from_pretrained` converts a checkpoint of `save_pretrained` into a program's weights.

    Entries that have the name of their weight and stay as they are need no recipe. They are
    derived for a transformers module; a loaded program has its own; any other program has none. A conversion
    that does more than move data has no recipe: binding it needs transformers, or reports what is missing.
    """
    if (known := facts_of(program).recipes) is not None:
        return known
    model, record = model_of(program), facts_of(program).adapter
    names = {} if record is None else record.weights
    return () if model is None else _derived(model, program.state_dict, names)


def _derived(module: Any, wanted: Mapping[str, object], names: Mapping[str, str]) -> tuple[Recipe, ...]:
    try:
        entries = _hub_entries(module, names)
    except Exception:  # `save_pretrained` raises the same: there is no checkpoint that would need a recipe.
        return ()
    recipes = []
    for conversion in hub_layout(entries, module, wanted):
        if not conversion.operations and conversion.entries == (conversion.target,):
            continue
        try:
            recipe = recipe_of(conversion, entries)
        except (NotRecordable, ConversionFailed):
            continue
        if any(name in wanted for name, _ in recipe.weights):
            recipes.append(recipe)
    return tuple(sorted(recipes, key=lambda recipe: recipe.weights))


def _hub_entries(module: Any, names: Mapping[str, str]) -> dict[str, Weight]:
    """Return the entries that `save_pretrained` writes, from shapes alone."""
    from transformers.core_model_loading import revert_weight_conversion

    state = {
        names.get(name, name): torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }
    written = revert_weight_conversion(module, state)
    return {name: Weight(tuple(tensor.shape), tensor.dtype) for name, tensor in written.items()}
