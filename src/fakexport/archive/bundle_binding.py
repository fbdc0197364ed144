"""One checkpoint for all methods of a bundle: does it fit, and binding it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from fakexport.documents.recipe import Recipe
from fakexport.program.program_devices import devices_of_program
from fakexport.program.program_facts import facts_of
from fakexport.weights import BindError, Checkpoint, WeightFinding, WeightsReport, warn_of
from fakexport.weights import bind as bind_program
from fakexport.weights.bound_devices import move_to_here
from fakexport.weights.expectation import ExpectedWeights, ModelSource, expected_of_program
from fakexport.weights.hub_recipes import model_of
from fakexport.weights.opening import open_checkpoint
from fakexport.weights.verification import CheckpointSource, Verified, verified

from .bundle import Bundle, Prefix
from .sharing import name_in_checkpoint, unify

__all__ = ["MethodWants", "bind_bundle", "device_maps", "own_part", "verified_bundle"]


@dataclass(frozen=True)
class MethodWants:
    """What one method wants of the checkpoint.

    Args:
        expected: Its weights.
        prefix: How their names begin; see `Bundle`.
        recipes: How entries in another layout become them.
        source: The model that knows it, where there is one.
    """

    expected: ExpectedWeights
    prefix: Prefix | None = None
    recipes: tuple[Recipe, ...] = ()
    source: ModelSource | None = None


def bind_bundle(
    bundle: Bundle,
    checkpoint: CheckpointSource,
    *,
    device_map: str | Mapping[str, str] | None = None,
    dtype: torch.dtype | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
    source: ModelSource | None = None,
    check_finite: bool | None = None,
) -> Bundle:
    """The bundle with the weights of a checkpoint, in all methods or in none; see `bind`.

    A weight that several methods share is one tensor. Entries that some method wants are not reported for
    the others.

    Raises:
        BindError: with one report for all methods, in which weights have their names in the checkpoint.
        ValueError: what the methods share would get different data; and as for `bind`.
    """
    opened = _read_once(open_checkpoint(checkpoint))
    wants = {
        method: MethodWants(
            expected_of_program(program),
            bundle.prefixes.get(method),
            facts_of(program).recipes or (),
            model_of(program) if source is None else source,
        )
        for method, program in bundle.items()
    }
    given = constants or {}
    _check_constants(given, wants)
    readings = _readings(wants, opened, given=given, is_converting=dtype is not None)
    report = _report(readings, wants, opened, name="the bundle")
    if not report.is_bindable:
        raise BindError(report)
    maps = device_maps(bundle, device_map)
    programs = {}
    for method, program in bundle.items():
        reading = readings[method]
        options: dict[str, Any] = {
            "constants": {name: given[name] for name in given if name in wants[method].expected.constants},
            "device_map": maps[method],
            "source": wants[method].source,
        }
        try:
            programs[method] = bind_program(
                program, reading.wanted, dtype=dtype, check_finite=check_finite, **options
            )
        except BindError as error:
            raise BindError(replace(error.report, source=f"the method {method}")) from None
    warn_of(report.checkpoint, report.findings)
    # What a method has no prefix for is not what its program had in another archive.
    prefixes = {method: bundle.prefixes.get(method, ("", "")) for method in bundle}
    bound = Bundle(programs, prefixes=prefixes, shared=bundle.shared)
    unify(programs, bound.shared)
    return bound


def verified_bundle(
    wants: Mapping[str, MethodWants], checkpoint: CheckpointSource, *, name: str, topology: str = "cpu"
) -> WeightsReport:
    """Whether a checkpoint has every weight of every method, told from the headers of its files.

    Args:
        wants: By method.
        checkpoint: As for `verify_weights`.
        name: Of the bundle.
        topology: As for `verify_weights`.
    Returns:
        One report, in which weights have their names in the checkpoint, and count once.
    """
    opened = open_checkpoint(checkpoint)
    return _report(_readings(wants, opened, topology=topology), wants, opened, name=name)


@dataclass(frozen=True)
class _Reading:
    """How one method reads the checkpoint.

    Args:
        seen: The entries below its prefix, by the names of the program.
        names: Of each, its name in the checkpoint.
        verified: What fits.
    """

    seen: Checkpoint
    names: Mapping[str, str]
    verified: Verified

    @property
    def wanted(self) -> Checkpoint:
        """Only what the method wants."""
        left = set(self.verified.match.unexpected)
        return _kept(self.seen, {name: name for name in self.seen.entries if name not in left})


def _readings(
    wants: Mapping[str, MethodWants],
    checkpoint: Checkpoint,
    *,
    topology: str = "cpu",
    given: Mapping[str, torch.Tensor] | None = None,
    is_converting: bool = False,
) -> dict[str, _Reading]:
    found = {}
    for method, want in wants.items():
        seen, names = below_prefix(checkpoint, want.prefix or ("", ""))
        expected = want.expected
        if given:
            left = {name: weight for name, weight in expected.constants.items() if name not in given}
            expected = replace(expected, constants=left)
        fits = verified(
            expected,
            seen,
            name=method,
            source=want.source,
            recipes=want.recipes,
            topology=topology,
            is_converting=is_converting,
        )
        found[method] = _Reading(seen, names, fits)
    return found


def own_part(checkpoint: CheckpointSource, prefix: Prefix | None) -> CheckpointSource:
    """The part of a checkpoint that one program of a bundle reads; all of it where it has no prefix."""
    return checkpoint if prefix is None else below_prefix(open_checkpoint(checkpoint), prefix)[0]


def below_prefix(checkpoint: Checkpoint, prefix: Prefix) -> tuple[Checkpoint, Mapping[str, str]]:
    """The part of a checkpoint that a method reads, by the names of its program; and their true names."""
    outside, inside = prefix
    names = {
        inside + name.removeprefix(outside): name for name in checkpoint.entries if name.startswith(outside)
    }
    return _kept(checkpoint, names), names


def _kept(checkpoint: Checkpoint, names: Mapping[str, str]) -> Checkpoint:
    """The entries of these names, by new ones."""
    new = {old: name for name, old in names.items()}
    shared = (tuple(new[name] for name in group if name in new) for group in checkpoint.shared)
    return replace(
        checkpoint,
        entries=MappingProxyType({name: checkpoint.entries[old] for name, old in names.items()}),
        read=lambda name: checkpoint.read(names[name]),
        shared=tuple(group for group in shared if len(group) > 1),
    )


def _read_once(checkpoint: Checkpoint) -> Checkpoint:
    """Gives the same tensor each time: what two methods read is one memory."""
    tensors: dict[str, torch.Tensor] = {}

    def read(name: str) -> torch.Tensor:
        if name not in tensors:
            tensors[name] = checkpoint.read(name)
        return tensors[name]

    return replace(checkpoint, read=read)


def _report(
    readings: Mapping[str, _Reading],
    wants: Mapping[str, MethodWants],
    checkpoint: Checkpoint,
    *,
    name: str,
) -> WeightsReport:
    unwanted = set(checkpoint.entries)
    converted: set[str] = set()
    findings: list[WeightFinding] = []
    seen: dict[str, set[str]] = {}
    for method, reading in readings.items():
        match, report = reading.verified.match, reading.verified.report
        unwanted -= {reading.names[entry] for entry in reading.names.keys() - set(match.unexpected)}
        made = [conversion for conversion in match.conversions.values() if conversion.operations]
        converted.update(reading.names[entry] for conversion in made for entry in conversion.entries)
        for finding in _in_checkpoint(report.findings, reading, wants[method].prefix):
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
                name_in_checkpoint(weight, wants[method].prefix)
                for method in readings
                for weight in _one_per_tie(wants[method].expected)
            }
        ),
        entries=len(checkpoint.entries),
        entry_bytes=checkpoint.nbytes,
        converted=len(converted),
        findings=tuple(findings),
    )


def _in_checkpoint(
    findings: Iterable[WeightFinding], reading: _Reading, prefix: Prefix | None
) -> Iterator[WeightFinding]:
    """The findings with the checkpoint's names: what several methods lack is one finding then."""

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(reading.names.get(name, name_in_checkpoint(name, prefix)) for name in names)

    for finding in findings:
        cause = finding.cause and replace(finding.cause, names=renamed(finding.cause.names))
        yield replace(finding, names=renamed(finding.names), cause=cause)


def _one_per_tie(expected: ExpectedWeights) -> set[str]:
    aliases = expected.aliases()
    return {aliases.get(name, (name,))[0] for name in expected.all}


def _check_constants(given: Mapping[str, torch.Tensor], wants: Mapping[str, MethodWants]) -> None:
    for name in given:
        if not any(name in want.expected.constants for want in wants.values()):
            known = ", ".join(name for want in wants.values() for name in want.expected.constants) or "none"
            raise ValueError(f"{name!r} is no constant without a value; those of the bundle: {known}")


def device_maps(
    bundle: Bundle, device_map: str | Mapping[str, str] | None
) -> dict[str, Mapping[str, str] | None]:
    """The device map of each method, which names only devices that it has."""
    present = {method: devices_of_program(program) for method, program in bundle.items()}
    every = tuple(dict.fromkeys(device for devices in present.values() for device in devices))
    targets = move_to_here(device_map, every).targets
    return {
        method: {device: targets[device] for device in devices if device in targets} or None
        for method, devices in present.items()
    }
