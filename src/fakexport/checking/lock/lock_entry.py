"""An entry of a lock: one model for one target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fakexport.report import Report, RuntimeVerdict, Verdict

if TYPE_CHECKING:
    from fakexport.exporting.program import Fingerprint

Key = tuple[str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class LockEntry:
    """The result of checking one model for one target.

    Args:
        source: The source as the user wrote it, with paths relative to the folder of the lock.
        target: Name of the target, as the user wrote it.
        options: Options of the check, as text: `{"dtype": "bfloat16"}`.
        topology: The devices, such as `8xH100-80GB`.
        verdict: The result, such as `exports` or `fails at capture`.
        codes: Codes of the diagnostics of the target, sorted and unique.
        weights: Bytes of parameters, buffers and constants by device.
        program: Fingerprint of the program, of rank 0 if the model is parallel; None without a program.
        ranks: Digests of the programs of the other traced ranks, by rank.
        runtimes: Answers of the requested runtimes with the operators that fall back, by runtime.
    """

    source: str
    target: str
    options: Mapping[str, str]
    topology: str
    verdict: str
    codes: tuple[str, ...]
    versions: Mapping[str, str]
    weights: Mapping[str, int]
    program: Fingerprint | None
    ranks: Mapping[str, str] = field(default_factory=dict)
    runtimes: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The source, the target and the options. Entries with equal keys can be compared."""
        return self.source, self.target, tuple(sorted(self.options.items()))


def entries_of(report: Report, *, source: str, options: Mapping[str, str]) -> list[LockEntry]:
    return [_entry(report, verdict, source, options) for verdict in report.verdicts]


def _entry(report: Report, verdict: Verdict, source: str, options: Mapping[str, str]) -> LockEntry:
    fingerprints = _fingerprints(verdict)
    name = verdict.target.name
    found = {found.code for found in report.diagnostics if name in found.targets or not found.targets}
    return LockEntry(
        source=source,
        target=name,
        options=dict(sorted(options.items())),
        topology=verdict.target.topology,
        verdict=verdict_text(verdict),
        codes=tuple(sorted(found)),
        versions={**report.versions, **_versions(verdict.runtimes)},
        weights=_weights(verdict),
        program=fingerprints.get(0),
        ranks={str(rank): found.digest for rank, found in sorted(fingerprints.items()) if rank},
        runtimes=dict(sorted((each.runtime, _answer(each)) for each in verdict.runtimes)),
    )


def _fingerprints(verdict: Verdict) -> Mapping[int, Fingerprint]:
    if verdict.fingerprints or verdict.saved is None:
        return verdict.fingerprints
    from fakexport.exporting.program import fingerprint  # Needs torch, but reading a lock does not.

    return {rank: fingerprint(program) for rank, program in verdict.saved.programs.items()}


def _versions(answers: Iterable[RuntimeVerdict]) -> Mapping[str, str]:
    packages = (package.partition(" ") for each in answers for package in each.versions.split(", "))
    return {name: version for name, _, version in packages if name}


def _answer(found: RuntimeVerdict) -> str:
    operators = sorted({each.operator for each in found.fallbacks})
    return ": ".join([found.text, *([", ".join(operators)] if operators else [])])


def verdict_text(verdict: Verdict) -> str:
    return "exports" if verdict.is_exportable else f"fails at {verdict.failed_stage}"


def _weights(verdict: Verdict) -> dict[str, int]:
    return {} if verdict.summary is None else dict(sorted(verdict.summary.held_bytes().items()))
