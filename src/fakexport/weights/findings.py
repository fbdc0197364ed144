"""Turn a match into findings, one for all names that share a fault and a cause."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace

from fakexport.weights.checkpoint import Checkpoint
from fakexport.weights.expectation import ExpectedWeights, Weight
from fakexport.weights.likely_cause import Cause, cause_of_shape, causes_of_names
from fakexport.weights.matching import Match
from fakexport.weights.name_folding import template_of
from fakexport.weights.weights_report import WeightFinding

_LEFT_OUT = Cause(
    "the class of the model computes it, but it is too large for the archive: install transformers and put "
    "the config.json of the model next to the checkpoint"
)
_CONSTANT = Cause("a constant without a value (see FE601 to FE603): no checkpoint provides it by itself")


def findings_of(
    match: Match,
    expected: ExpectedWeights,
    checkpoint: Checkpoint,
    *,
    left_out: Collection[str] = (),
    is_converting: bool = False,
) -> tuple[WeightFinding, ...]:
    """Return everything that the headers show, errors first.

    Args:
        left_out: Missing weights that the class of the model computes, too large for the archive.
        is_converting: Floating-point dtypes are converted, so that a dtype mismatch is not an error.
    """
    missing = {name: expected.all[name] for name in match.missing}
    entries = checkpoint.entries
    unexpected = {name: Weight(entries[name].shape, entries[name].dtype) for name in match.unexpected}
    causes = causes_of_names(missing, unexpected, expected.transient)
    return (
        *_missing(match, expected, {**causes, **dict.fromkeys(left_out, _LEFT_OUT)}),
        *_wrong(match, expected, is_converting),
        *_twice(match),
        *_ties(match, expected, checkpoint),
        *_grouped("FE704", match.unexpected, causes),
    )


def _missing(match: Match, expected: ExpectedWeights, causes: Mapping[str, Cause]) -> Iterator[WeightFinding]:
    failed = {
        name: Cause(f"{reason}; it is built from {{}}", made.entries)
        for name, (made, reason) in match.failed.items()
    }
    constants = dict.fromkeys(expected.constants, _CONSTANT)
    for finding in _grouped(
        "FE701", _one_per_tie(match.missing, expected), {**causes, **constants, **failed}
    ):
        is_constant = finding.names[0] in expected.constants
        fix = "pass it: `bind(..., constants={name: tensor})`" if is_constant else None
        yield replace(finding, fix=fix)


def _one_per_tie(names: tuple[str, ...], expected: ExpectedWeights) -> tuple[str, ...]:
    aliases = expected.aliases()
    return tuple(dict.fromkeys(aliases.get(name, (name,))[0] for name in names))


def _grouped(code: str, names: tuple[str, ...], causes: Mapping[str, Cause]) -> Iterator[WeightFinding]:
    """Yield one finding for all names that share a cause."""
    groups: dict[Hashable, list[str]] = {}
    for name in names:
        cause = causes.get(name)
        groups.setdefault(None if cause is None else (cause.text, _templates(cause.names)), []).append(name)
    for group in groups.values():
        cause = _joined([causes[name] for name in group if name in causes])
        is_harmless = cause is not None and cause.is_harmless
        yield WeightFinding(code, tuple(group), cause=cause, severity="note" if is_harmless else None)


def _joined(causes: list[Cause]) -> Cause | None:
    if not causes:
        return None
    return replace(causes[0], names=tuple(dict.fromkeys(name for cause in causes for name in cause.names)))


def _templates(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(template_of, names))


def _wrong(match: Match, expected: ExpectedWeights, is_converting: bool) -> Iterator[WeightFinding]:
    shapes: dict[Hashable, list[str]] = {}
    dtypes: dict[Hashable, list[str]] = {}
    wanted = expected.all
    for name, found in match.made.items():
        weight = wanted[name]
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
        yield _wrong_dtype(tuple(names), wanted[names[0]], match.made[names[0]], len(match.made))


def _made_of(names: list[str], match: Match) -> Cause | None:
    """Return the cause of a wrong shape where transformers builds the weight from several entries."""
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


def _twice(match: Match) -> Iterator[WeightFinding]:
    for name, entries in match.twice.items():
        yield WeightFinding("FE707", (name,), cause=Cause("the entries are {}", entries))


def _ties(match: Match, expected: ExpectedWeights, checkpoint: Checkpoint) -> Iterator[WeightFinding]:
    shared = {name: group for group in checkpoint.shared for name in group}
    for names in expected.tied:
        present = [name for name in names if name in match.made]
        entries = [match.conversions[name].entries for name in present]
        groups = {shared.get(found[0], found) for found in entries}
        if len(present) > 1 and len(groups) > 1:
            cause = Cause("the checkpoint may have been saved from weights that are not tied")
            yield WeightFinding("FE705", tuple(present), cause=cause)
