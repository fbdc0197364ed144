"""Verify that a checkpoint fits a model, from headers, in seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from fakexport.documents import Recipe
from fakexport.weights.checkpoint import Checkpoint
from fakexport.weights.expectation import ExpectedWeights, ModelSource, expected_of_module, fake_model
from fakexport.weights.findings import findings_of
from fakexport.weights.initial_values import initial_values
from fakexport.weights.matching import Match, match
from fakexport.weights.opening import open_checkpoint
from fakexport.weights.weights_report import WeightsReport

CheckpointSource = str | Path | Mapping[str, torch.Tensor] | Checkpoint


def verify_model(
    model: ModelSource,
    checkpoint: CheckpointSource,
    *,
    topology: str = "cpu",
    dtype: torch.dtype | None = None,
) -> WeightsReport:
    """Report whether a checkpoint has every weight of a model; see `archive.verify_weights`.

    Args:
        model: `file.py:factory`, `hf:config.json` and the like, as for `check`; a factory; or a module.
        checkpoint: A file, a folder or tensors by name, as for `open_checkpoint`.
        topology: Devices that the model's constructor may name.
        dtype: Floating-point dtype in which the model is built; default: the source's own, else float32.
    Raises:
        CheckpointError, ModelNotBuilt, ValueError, TypeError: as for `archive.verify_weights`.
    """
    opened = open_checkpoint(checkpoint)
    built = fake_model(model, topology=topology, dtype=dtype)
    name = model if isinstance(model, str) else type(built).__name__
    return verified(expected_of_module(built), opened, name=name).report


@dataclass(frozen=True)
class Verified:
    """The report, and the interpretation of the checkpoint that it is about."""

    report: WeightsReport
    match: Match


def verified(
    expected: ExpectedWeights,
    checkpoint: Checkpoint,
    *,
    name: str,
    source: ModelSource | None = None,
    recipes: Collection[Recipe] = (),
    computed: Mapping[str, torch.Tensor | None] | None = None,
    topology: str = "cpu",
    is_converting: bool = False,
) -> Verified:
    """Report as `verify_weights` does, for an opened checkpoint and known weights.

    Args:
        recipes: The conversions recorded in its archive, used instead.
        computed: Values of weights that the checkpoint may lack, as the archive has them; None if too large.
        topology: For the construction of that model.
        is_converting: A different floating-point dtype is not an error.
    """
    model = None if source is None else fake_model(source, topology=topology)
    recorded = computed or {}
    found = _completed(match(checkpoint, expected, model, recipes), recorded)
    model = expected.model if model is None else model
    if model is None and any(found.faults(expected)):
        model = _model_beside(checkpoint, _dtype(expected))
        found = found if model is None else _completed(match(checkpoint, expected, model), recorded)
    found = _completed(found, initial_values(model, {name: expected.all[name] for name in found.missing}))
    left_out = {name for name in found.missing if name in recorded}
    again = sum(len(names) - 1 for names in expected.tied)
    report = WeightsReport(
        source=name,
        checkpoint=checkpoint.location,
        weights=len(expected.all) - again,
        entries=len(checkpoint.entries),
        entry_bytes=checkpoint.nbytes,
        converted=len({entry for c in found.conversions.values() if c.operations for entry in c.entries}),
        computed=tuple(found.computed),
        findings=findings_of(found, expected, checkpoint, left_out=left_out, is_converting=is_converting),
    )
    return Verified(report, found)


def _completed(found: Match, values: Mapping[str, torch.Tensor | None]) -> Match:
    """Return a match in which missing weights have these values, each a copy of its own."""
    given = {name: values[name] for name in found.missing if values.get(name) is not None}
    missing = tuple(name for name in found.missing if name not in given)
    copies = {name: value.clone() for name, value in given.items() if value is not None}
    return replace(found, missing=missing, computed={**found.computed, **copies})


def _dtype(expected: ExpectedWeights) -> torch.dtype | None:
    """Return the floating-point dtype of the weights; None where they have several."""
    found = {weight.dtype for weight in expected.weights.values() if weight.dtype.is_floating_point}
    return found.pop() if len(found) == 1 else None


def _model_beside(checkpoint: Checkpoint, dtype: torch.dtype | None) -> nn.Module | None:
    """Return the fake model of the `config.json` next to a checkpoint, if transformers can build it."""
    config = None if checkpoint.folder is None else checkpoint.folder / "config.json"
    if config is None or not config.is_file():
        return None
    try:
        return fake_model(f"hf:{config}", dtype=dtype)
    except ValueError:
        return None  # Then the names have to fit as they are, and the report says that they do not.
