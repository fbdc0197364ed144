"""Weights that a checkpoint may lack, because the class of the model computes them when it is constructed."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.capture import value_or_reason
from fakexport.fake import is_fake
from fakexport.history import Provenance
from fakexport.program import facts_of
from fakexport.weights.expectation import Weight, expected_of_program
from fakexport.weights.hub_recipes import model_of
from fakexport.weights.layout import is_transformers_model


def computed_of(program: ExportedProgram, *, most_bytes: int) -> Mapping[str, torch.Tensor | None]:
    """Return the weights that a checkpoint of a program may lack, with their values, for its archive.

    Args:
        program: From `export`, whose model is asked; or from an archive, which has them.
        most_bytes: Of one value.
    Returns:
        Real tensors on the CPU, by name; None for a larger weight that the code determines.
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
    """Return the values of missing weights that `from_pretrained` leaves as they are constructed.

    Those that the class says it does not save (`_keys_to_ignore_on_save`) or that may be missing
    (`_keys_to_ignore_on_load_missing`), if nothing but its code determines their value: no draw, even after a
    seed, and no other weight. Marian's tables of positions are such weights.

    Args:
        model: A fake model of transformers; no other has any.
        missing: Shape and dtype of the missing weights, by name.
    Returns:
        Real tensors on the CPU, by name.
    """
    named = _candidates(model, missing)
    provenance = _provenance(model, named)
    outcomes = {name: value_or_reason(tensor, provenance) for name, tensor in named.items()}
    return {name: value for name, value in outcomes.items() if isinstance(value, torch.Tensor)}


def _candidates(model: nn.Module | None, missing: Mapping[str, Weight]) -> dict[str, torch.Tensor]:
    """Return the fakes of those weights that the class lets a checkpoint lack."""
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
