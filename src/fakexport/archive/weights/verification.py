"""Compare a checkpoint with a model, reading only the checkpoint's headers, and list all mismatches."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from fakexport.archive.weights.checkpoint import Checkpoint
from fakexport.archive.weights.expectation import (
    ExpectedWeights,
    ModelSource,
    Weight,
    expected_of_module,
    fake_model,
)
from fakexport.archive.weights.hub_recipes import initial_values
from fakexport.archive.weights.likely_cause import Cause, cause_of_shape, causes_of_names
from fakexport.archive.weights.matching import Match, match
from fakexport.archive.weights.opening import open_checkpoint
from fakexport.archive.weights.weights_report import WeightFinding, WeightsReport, template_of
from fakexport.files.documents import Recipe

CheckpointSource = str | Path | Mapping[str, torch.Tensor] | Checkpoint


def verify_model(
    model: ModelSource,
    checkpoint: CheckpointSource,
    *,
    topology: str = "cpu",
    dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
) -> WeightsReport:
    """Report whether a checkpoint has every weight of a model; see `archive.verify_weights`."""
    opened = open_checkpoint(checkpoint)
    built = fake_model(model, topology=topology, dtype=dtype, trust_remote_code=trust_remote_code)
    name = model if isinstance(model, str) else type(built).__name__
    return verified(expected_of_module(built), opened, name=name).report


@dataclass(frozen=True)
class Verified:
    """The report on a checkpoint, and the match between its entries and the weights."""

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
    """Verify an opened checkpoint against known weights; see `verify_weights`.

    Args:
        source: The transformers model whose conversion tables apply.
        recipes: Conversions from an archive, used if there is no transformers model.
        computed: Values of weights that the checkpoint may omit, by name, from an archive; None for a value
            that was too large to store.
        topology: The devices that the model's constructor may use.
        is_converting: Whether floating-point weights may have a different dtype.
    """
    model = None if source is None else fake_model(source, topology=topology)
    recorded = computed or {}
    found = _completed(match(checkpoint, expected, model, recipes), recorded)
    model = expected.model if model is None else model
    if model is None and any(found.faults(expected)):
        model = _model_beside(checkpoint, _dtype(expected))
        if model is not None:
            # The model knows nothing of the shards of a rank, which the recipes cut out.
            beside = _completed(match(checkpoint, expected, model), recorded)
            found = min((beside, found), key=lambda each: each.faults(expected))
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
    """Return the match with copies of these values for missing weights."""
    given = {name: values[name] for name in found.missing if values.get(name) is not None}
    missing = tuple(name for name in found.missing if name not in given)
    copies = {name: value.clone() for name, value in given.items() if value is not None}
    return replace(found, missing=missing, computed={**found.computed, **copies})


def _dtype(expected: ExpectedWeights) -> torch.dtype | None:
    """Return the only floating-point dtype of the weights, or None if there are several or none."""
    found = {weight.dtype for weight in expected.weights.values() if weight.dtype.is_floating_point}
    return found.pop() if len(found) == 1 else None


def _model_beside(checkpoint: Checkpoint, dtype: torch.dtype | None) -> nn.Module | None:
    """Build the model of the `config.json` next to a checkpoint, without data. None if that fails."""
    config = None if checkpoint.folder is None else checkpoint.folder / "config.json"
    if config is None or not config.is_file():
        return None
    try:
        return fake_model(f"hf:{config}", dtype=dtype)
    except ValueError:
        return None  # Without a model, entries are matched by unconverted names.


_LEFT_OUT = Cause(
    "the model's class computes it, but it is too large for the archive: install transformers and put "
    "the model's config.json next to the checkpoint"
)
_CONSTANT = Cause("a constant without a value (see FE601 to FE603), which no checkpoint contains")


def findings_of(
    match: Match,
    expected: ExpectedWeights,
    checkpoint: Checkpoint,
    *,
    left_out: Collection[str] = (),
    is_converting: bool = False,
) -> tuple[WeightFinding, ...]:
    """Return all findings that the checkpoint's headers show, errors first.

    `left_out` are missing weights that the model's class computes, but whose values were too large for the
    archive. `is_converting` says that floating-point dtypes may differ.
    """
    missing = {name: expected.all[name] for name in match.missing}
    entries = checkpoint.entries
    unexpected = {name: Weight(entries[name].shape, entries[name].dtype) for name in match.unexpected}
    causes = causes_of_names(missing, unexpected, expected.transient)
    return (
        *_missing(match, expected, {**causes, **dict.fromkeys(left_out, _LEFT_OUT)}),
        *_wrong(match, expected, is_converting),
        *(
            WeightFinding("FE707", (name,), cause=Cause("the entries are {}", of))
            for name, of in match.twice.items()
        ),
        *_ties(match, expected, checkpoint),
        *_grouped("FE704", match.unexpected, causes),
    )


def _missing(match: Match, expected: ExpectedWeights, causes: Mapping[str, Cause]) -> Iterator[WeightFinding]:
    failed = {
        name: Cause(f"{reason}; it is built from {{}}", made.entries)
        for name, (made, reason) in match.failed.items()
    }
    constants = dict.fromkeys(expected.constants, _CONSTANT)
    for finding in _grouped("FE701", expected.one_per_tie(match.missing), {**causes, **constants, **failed}):
        is_constant = finding.names[0] in expected.constants
        fix = "pass its value: `bind(..., constants={name: tensor})`" if is_constant else None
        yield replace(finding, fix=fix)


def _grouped(code: str, names: tuple[str, ...], causes: Mapping[str, Cause]) -> Iterator[WeightFinding]:
    """Yield one finding for each group of names with the same cause."""
    groups: dict[Hashable, list[str]] = {}
    for name in names:
        cause = causes.get(name)
        groups.setdefault(None if cause is None else (cause.text, *map(template_of, cause.names)), []).append(
            name
        )
    for group in groups.values():
        known = [causes[name] for name in group if name in causes]
        names_of = tuple(dict.fromkeys(name for cause in known for name in cause.names))
        cause = replace(known[0], names=names_of) if known else None
        is_harmless = cause is not None and cause.is_harmless
        yield WeightFinding(code, tuple(group), cause=cause, severity="note" if is_harmless else None)


def _wrong(match: Match, expected: ExpectedWeights, is_converting: bool) -> Iterator[WeightFinding]:
    shapes: dict[Hashable, list[str]] = {}
    dtypes: dict[Hashable, list[str]] = {}
    wanted, aliases = expected.all, expected.aliases()
    made: dict[Hashable, str] = {}  # A tied tensor counts once.
    for name, found in match.made.items():
        made.setdefault((aliases.get(name, name), found.shape, found.dtype), name)
    for name in made.values():
        weight, found = wanted[name], match.made[name]
        if found.shape != weight.shape:
            shapes.setdefault((template_of(name), weight.shape, found.shape), []).append(name)
        elif found.dtype != weight.dtype and not (
            is_converting and found.dtype.is_floating_point and weight.dtype.is_floating_point
        ):
            dtypes.setdefault((found.dtype, weight.dtype), []).append(name)
    for names in shapes.values():
        weight, found = wanted[names[0]], match.made[names[0]]
        cause = _made_of(names, match) or cause_of_shape(names[0], weight.shape, found.shape)
        yield WeightFinding("FE702", tuple(names), str(weight), str(found), cause)
    for names in dtypes.values():
        yield _wrong_dtype(tuple(names), wanted[names[0]], match.made[names[0]], len(made))


def _made_of(names: list[str], match: Match) -> Cause | None:
    """Return the cause of a shape mismatch of weights that transformers builds from entries, or None."""
    made = [match.conversions[name] for name in names]
    if not made[0].operations:
        return None
    entries = tuple(entry for conversion in made for entry in conversion.entries)
    return Cause("transformers builds it from {}, some of which may be missing", entries)


def _wrong_dtype(names: tuple[str, ...], weight: Weight, found: Weight, made: int) -> WeightFinding:
    expected, given = (str(w.dtype).removeprefix("torch.") for w in (weight, found))
    is_all = len(names) == made
    fix = None
    if weight.dtype.is_floating_point and found.dtype.is_floating_point:
        export = f"export with `--dtype {given}`" if is_all else f"export these weights in {given}"
        fix = f"{export}, or convert while binding: `bind(..., dtype=torch.{expected})`"
    cause = Cause(f"the whole checkpoint is {given}") if is_all else None
    return WeightFinding("FE703", names, expected, given, cause, fix)


def _ties(match: Match, expected: ExpectedWeights, checkpoint: Checkpoint) -> Iterator[WeightFinding]:
    shared = {name: group for group in checkpoint.shared for name in group}
    for names in expected.tied:
        present = [name for name in names if name in match.made]
        entries = [match.conversions[name].entries for name in present]
        groups = {shared.get(found[0], found) for found in entries}
        if len(present) > 1 and len(groups) > 1:
            cause = Cause("the checkpoint may have been saved from weights that are not tied")
            yield WeightFinding("FE705", tuple(present), cause=cause)
