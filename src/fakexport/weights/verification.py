"""Does a checkpoint fit a model? Told from headers, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from fakexport.documents.recipe import Recipe
from fakexport.program.program_facts import facts_of
from fakexport.weights.checkpoint import Checkpoint
from fakexport.weights.expectation import (
    ExpectedWeights,
    ModelSource,
    expected_of_module,
    expected_of_program,
    fake_model,
)
from fakexport.weights.findings import findings_of
from fakexport.weights.hub_recipes import model_of
from fakexport.weights.matching import Match, match
from fakexport.weights.opening import open_checkpoint
from fakexport.weights.weights_report import WeightsReport

__all__ = ["CheckpointSource", "Verified", "verified", "verify_weights"]

CheckpointSource = str | Path | Mapping[str, torch.Tensor] | Checkpoint


def verify_weights(
    source_or_program: str | nn.Module | Callable[[], Any] | ExportedProgram,
    checkpoint: CheckpointSource,
    *,
    source: ModelSource | None = None,
    topology: str = "cpu",
    dtype: torch.dtype | None = None,
) -> WeightsReport:
    """Whether every weight of a model is in a checkpoint, told from the headers of its files.

    No data is read and the model is built without data, so that it takes seconds for a checkpoint of any
    size. Entries in the layout of the Hugging Face hub are converted as transformers does it.

    Args:
        source_or_program: `file.py:factory`, `hf:config.json` and the like, as for `check`; a factory; a
            module; or a program.
        checkpoint: A file, a folder or tensors by name, as for `open_checkpoint`.
        source: Of a program: the model that it was exported from, for the conversion of a checkpoint in
            the hub's layout. Default: what is known of it, from the export or from its archive; else the
            `config.json` beside the checkpoint, if the names do not fit.
        topology: Devices that the model's constructor may name.
        dtype: Floating dtype in which the model is built; default: what the source says, else float32.
    Returns:
        Everything that does not fit, with the likely cause. `is_bindable` tells whether `bind` will take it
        (where it does not find that tied weights differ, which only their data tells).
    Raises:
        CheckpointError: no checkpoint, or one that is refused.
        ModelNotBuilt: the model's constructor raised.
        ValueError, TypeError: no such source or topology.
    Reports:
        FE701, FE702, FE703, FE704, FE705, FE707.

    Example:
        >>> verify_weights(nn.Linear(4, 2), {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}).is_bindable
        True
    """
    opened = open_checkpoint(checkpoint)
    if isinstance(source_or_program, ExportedProgram):
        expected = expected_of_program(source_or_program)
        return verified(
            expected,
            opened,
            name="the program",
            source=model_of(source_or_program) if source is None else source,
            recipes=facts_of(source_or_program).recipes or (),
            topology=topology,
        ).report
    model = fake_model(source_or_program, topology=topology, dtype=dtype)
    name = source_or_program if isinstance(source_or_program, str) else type(model).__name__
    return verified(expected_of_module(model), opened, name=name).report


@dataclass(frozen=True)
class Verified:
    """The report, and the reading of the checkpoint that it is about."""

    report: WeightsReport
    match: Match


def verified(
    expected: ExpectedWeights,
    checkpoint: Checkpoint,
    *,
    name: str,
    source: ModelSource | None = None,
    recipes: Collection[Recipe] = (),
    topology: str = "cpu",
    is_converting: bool = False,
) -> Verified:
    """As `verify_weights`, for what is known already.

    Args:
        expected: What is wanted.
        checkpoint: What there is.
        name: Of the model, for the report.
        source: The model that a program was exported from.
        recipes: What its archive says instead.
        topology: For the construction of that model.
        is_converting: Another floating dtype is no fault.
    """
    model = None if source is None else fake_model(source, topology=topology)
    found = match(checkpoint, expected, model, recipes)
    is_program_alone = model is None and expected.model is None
    if is_program_alone and any(found.faults(expected)) and (beside := _model_beside(checkpoint)) is not None:
        found = match(checkpoint, expected, beside)
    again = sum(len(names) - 1 for names in expected.tied)
    report = WeightsReport(
        source=name,
        checkpoint=checkpoint.location,
        weights=len(expected.all) - again,
        entries=len(checkpoint.entries),
        entry_bytes=checkpoint.nbytes,
        converted=len({entry for c in found.conversions.values() if c.operations for entry in c.entries}),
        findings=findings_of(found, expected, checkpoint, is_converting=is_converting),
    )
    return Verified(report, found)


def _model_beside(checkpoint: Checkpoint) -> nn.Module | None:
    """The fake model of the `config.json` beside a checkpoint, where transformers can build it."""
    config = None if checkpoint.folder is None else checkpoint.folder / "config.json"
    if config is None or not config.is_file():
        return None
    try:
        return fake_model(f"hf:{config}")
    except ValueError:
        return None  # Then the names have to fit as they are, and the report says that they do not.
