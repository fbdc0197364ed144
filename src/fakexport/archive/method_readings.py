"""One checkpoint for all programs of an archive: what each program reads from it, and whether that fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from fakexport.documents import AdapterRecord, Recipe
from fakexport.program import facts_of
from fakexport.weights import (
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
    with_values,
)

from .bundle import Bundle
from .manifest import Prefix
from .sharing import name_in_checkpoint


@dataclass(frozen=True)
class MethodWants:
    """What one method expects from the checkpoint.

    Args:
        expected: Its weights.
        prefix: Prefix of their names; see `Bundle`.
        recipes: How entries in another layout become them.
        computed: Values of weights that the checkpoint may lack, where an archive has them.
        source: The model that knows it, where there is one.
        adapter: How it needs an adapter; None for a program without one.
    """

    expected: ExpectedWeights
    prefix: Prefix | None = None
    recipes: tuple[Recipe, ...] = ()
    computed: Mapping[str, torch.Tensor | None] | None = None
    source: ModelSource | None = None
    adapter: AdapterRecord | None = None

    @classmethod
    def of(cls, bundle: Bundle, method: str, source: ModelSource | None = None) -> MethodWants:
        """Return what a program expects; `source` overrides its recorded source."""
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
        )


@dataclass(frozen=True)
class MethodReading:
    """How one method reads the checkpoint.

    Args:
        wants: What it expects.
        seen: The entries below its prefix, by the names of the program.
        names: For each entry, its name in the checkpoint.
        verified: What fits.
    """

    wants: MethodWants
    seen: Checkpoint
    names: Mapping[str, str]
    verified: Verified


def readings(
    wants: Mapping[str, MethodWants],
    checkpoint: Checkpoint,
    *,
    given: Mapping[str, torch.Tensor] | None = None,
    topology: str = "cpu",
    is_converting: bool = False,
) -> dict[str, MethodReading]:
    """Return what each method reads, from the headers of the checkpoint's files.

    Raises:
        ValueError: A method needs an adapter in another way than the checkpoint has one.
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
    return found


def report_of(found: Mapping[str, MethodReading], checkpoint: Checkpoint, *, name: str) -> WeightsReport:
    """Return one report for all methods, in which weights have their names in the checkpoint, and count once.

    For a single method, it has the names of its program.
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
                for weight in _one_per_tie(reading.wants.expected)
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
    """Yield the findings with the checkpoint's names, so that several methods share a finding."""

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            reading.names.get(name, name_in_checkpoint(name, reading.wants.prefix)) for name in names
        )

    for finding in findings:
        cause = finding.cause and replace(finding.cause, names=renamed(finding.cause.names))
        yield replace(finding, names=renamed(finding.names), cause=cause)


def _one_per_tie(expected: ExpectedWeights) -> set[str]:
    aliases = expected.aliases()
    return {aliases.get(name, (name,))[0] for name in expected.all}


def _below_prefix(checkpoint: Checkpoint, prefix: Prefix) -> tuple[Checkpoint, Mapping[str, str]]:
    """Return the part of a checkpoint that a method reads, by the program's names, and its true names."""
    outside, inside = prefix
    names = {
        inside + name.removeprefix(outside): name for name in checkpoint.entries if name.startswith(outside)
    }
    return _kept(checkpoint, names), names


def _kept(checkpoint: Checkpoint, names: Mapping[str, str]) -> Checkpoint:
    """Return the entries of these names, by new ones."""
    new = {old: name for name, old in names.items()}
    shared = (tuple(new[name] for name in group if name in new) for group in checkpoint.shared)
    return replace(
        checkpoint,
        entries=MappingProxyType({name: checkpoint.entries[old] for name, old in names.items()}),
        read=lambda name: checkpoint.read(names[name]),
        shared=tuple(group for group in shared if len(group) > 1),
    )
