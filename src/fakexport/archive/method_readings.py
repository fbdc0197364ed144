"""Read one checkpoint for all programs of an archive, and check whether it fits each program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType

import torch

from fakexport.archive.weights import (
    Checkpoint,
    ExpectedWeights,
    ModelSource,
    Verified,
    WeightFinding,
    WeightsReport,
    as_needed,
    expected_of_program,
    model_of,
    recipes_of,
    verified,
    warn_of_settings,
    with_values,
)
from fakexport.exporting.program import facts_of
from fakexport.files.documents import AdapterRecord, Recipe, differing_settings

from .bundle import Bundle
from .manifest import Prefix
from .shared_names import name_in_checkpoint


@dataclass(frozen=True)
class MethodRequirements:
    """What one method needs from the checkpoint.

    Args:
        expected: The method's weights.
        prefix: Prefix of the weight names, as for `Bundle`.
        recipes: How to compute weights from entries with a different layout.
        computed: Values of weights that the checkpoint may omit; None if no archive recorded such values.
        source: The model that the checkpoint belongs to, if known.
        adapter: How the method uses a LoRA adapter; None if it uses none.
        settings: The settings of the model that was exported; see `differing_settings`.
    """

    expected: ExpectedWeights
    prefix: Prefix | None = None
    recipes: tuple[Recipe, ...] = ()
    computed: Mapping[str, torch.Tensor | None] | None = None
    source: ModelSource | None = None
    adapter: AdapterRecord | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, bundle: Bundle, method: str, source: ModelSource | None = None) -> MethodRequirements:
        """Return what a method needs. `source` overrides the source that the program recorded."""
        program = bundle[method]
        return cls(
            expected_of_program(program),
            bundle.prefixes.get(method),
            recipes_of(program)
            if facts_of(program).parallel is not None
            else facts_of(program).recipes or (),
            facts_of(program).computed,
            model_of(program) if source is None else source,
            facts_of(program).adapter,
            facts_of(program).settings,
        )


@dataclass(frozen=True)
class MethodReading:
    """How one method reads the checkpoint.

    Args:
        wants: What the method needs from the checkpoint.
        seen: The checkpoint entries below the method's prefix, under the program's names.
        names: Name in the program -> name in the checkpoint, for each of these entries.
        verified: Result of comparing the entries with the method's weights.
    """

    wants: MethodRequirements
    seen: Checkpoint
    names: Mapping[str, str]
    verified: Verified


def readings(
    wants: Mapping[str, MethodRequirements],
    checkpoint: Checkpoint,
    *,
    given: Mapping[str, torch.Tensor] | None = None,
    topology: str = "cpu",
    is_converting: bool = False,
) -> dict[str, MethodReading]:
    """Return what each method reads. Only the headers of the checkpoint's files are read.

    Warns:
        WeightsWarning: The `config.json` next to the checkpoint is that of a model with other settings.
    """
    found = {}
    for method, want in wants.items():
        name = "the program" if len(wants) == 1 else f"the method {method}"
        needed = as_needed(checkpoint, want.adapter, want.expected, name=name)
        seen, names = _below_prefix(needed, want.prefix or ("", ""))
        own = {name: value for name, value in (given or {}).items() if name in want.expected.constants}
        seen = with_values(seen, own) if own else seen
        fits = verified(
            want.expected,
            seen,
            name=method,
            source=want.source,
            recipes=want.recipes,
            computed=want.computed,
            topology=topology,
            is_converting=is_converting,
        )
        found[method] = MethodReading(want, seen, names, fits)
    settings = (differing_settings(want.settings, checkpoint.folder) for want in wants.values())
    warn_of_settings(checkpoint.location, list(dict.fromkeys(chain.from_iterable(settings))))
    return found


def report_of(found: Mapping[str, MethodReading], checkpoint: Checkpoint, *, name: str) -> WeightsReport:
    """Return one report for all methods, with names as in the checkpoint. Each weight counts once.

    If there is a single method, the report uses the names in its program.
    """
    if len(found) == 1:
        (reading,) = found.values()
        return replace(reading.verified.report, source=name)
    unwanted = set(checkpoint.entries)
    converted: set[str] = set()
    findings: list[WeightFinding] = []
    seen: dict[str, set[str]] = {}
    for reading in found.values():
        match, report = reading.verified.match, reading.verified.report
        unwanted -= {reading.names[entry] for entry in reading.names.keys() - set(match.unexpected)}
        made = [conversion for conversion in match.conversions.values() if conversion.operations]
        converted.update(reading.names[entry] for conversion in made for entry in conversion.entries)
        for finding in _in_checkpoint(report.findings, reading):
            known = seen.setdefault(finding.code, set())
            names = tuple(weight for weight in finding.names if weight not in known)
            known.update(names)
            if names and finding.code != "FE704":
                findings.append(replace(finding, names=names))
    if unwanted:
        findings.append(WeightFinding("FE704", tuple(n for n in checkpoint.entries if n in unwanted)))
    findings.sort(key=lambda finding: finding.diagnostic.severity != "error")
    return WeightsReport(
        source=name,
        checkpoint=checkpoint.location,
        weights=len(
            {
                name_in_checkpoint(weight, reading.wants.prefix)
                for reading in found.values()
                for weight in reading.wants.expected.one_per_tie(reading.wants.expected.all)
            }
        ),
        entries=len(checkpoint.entries),
        entry_bytes=checkpoint.nbytes,
        converted=len(converted),
        findings=tuple(findings),
        computed=tuple(
            dict.fromkeys(
                name_in_checkpoint(weight, reading.wants.prefix)
                for reading in found.values()
                for weight in reading.verified.match.computed
            )
        ),
    )


def _in_checkpoint(findings: Iterable[WeightFinding], reading: MethodReading) -> Iterator[WeightFinding]:
    """Yield the findings with names as in the checkpoint, so that several methods' findings can be merged."""

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            reading.names.get(name, name_in_checkpoint(name, reading.wants.prefix)) for name in names
        )

    for finding in findings:
        cause = finding.cause and replace(finding.cause, names=renamed(finding.cause.names))
        yield replace(finding, names=renamed(finding.names), cause=cause)


def _below_prefix(checkpoint: Checkpoint, prefix: Prefix) -> tuple[Checkpoint, Mapping[str, str]]:
    """Return the entries that a method reads, named as in its program, and their original names."""
    outside, inside = prefix
    names = {
        inside + name.removeprefix(outside): name for name in checkpoint.entries if name.startswith(outside)
    }
    new = {old: name for name, old in names.items()}
    shared = (tuple(new[name] for name in group if name in new) for group in checkpoint.shared)
    kept = replace(
        checkpoint,
        entries=MappingProxyType({name: checkpoint.entries[old] for name, old in names.items()}),
        read=lambda name: checkpoint.read(names[name]),
        shared=tuple(group for group in shared if len(group) > 1),
    )
    return kept, names
