"""Weights that a checkpoint may lack, because the class of the model computes them when it is constructed."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import nn

from fakexport.capture import value_or_reason
from fakexport.fake import is_fake
from fakexport.history import Provenance
from fakexport.weights.expectation import Weight
from fakexport.weights.layout import is_transformers_model

__all__ = ["initial_values"]


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
    if model is None or not is_transformers_model(model):
        return {}
    unsaved = frozenset(getattr(model, "_keys_to_ignore_on_save", None) or ())
    patterns = tuple(getattr(model, "_keys_to_ignore_on_load_missing", None) or ())
    state = model.state_dict(keep_vars=True)
    named = {
        name: state[name]
        for name, weight in missing.items()
        if name in state
        and is_fake(state[name])
        and tuple(state[name].shape) == weight.shape
        and (name in unsaved or any(re.search(pattern, name) for pattern in patterns))
    }
    others = {name: tensor for name, tensor in model.named_parameters() if name not in named}
    provenance = Provenance(others, is_seed_enough=False)
    outcomes = {name: value_or_reason(tensor.detach(), provenance) for name, tensor in named.items()}
    return {name: value for name, value in outcomes.items() if isinstance(value, torch.Tensor)}
