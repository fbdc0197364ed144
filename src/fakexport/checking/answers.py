"""The answer for one target: values that another process can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fakexport._libraries import import_loaded_libraries
from fakexport.checking.check_call import Request, versions
from fakexport.checking.target_check import Announce, TargetCheck
from fakexport.diagnose import diagnose_not_saved
from fakexport.diagnostics import Diagnostic
from fakexport.program import ComparedProgram, compared, fingerprint
from fakexport.report import SavedPrograms, Verdict


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an answer has besides the verdict; each takes time.

    Args:
        progress: How many blocks are traced.
        programs: All of them, saved.
        fingerprints: Their fingerprints, for a lock.
        compared: What a comparison with the program of another target reads.
        tried_fixes: Whether the fixes of the report work, as far as that is known within a minute.
    """

    progress: bool = False
    programs: bool = False
    fingerprints: bool = False
    compared: bool = False
    tried_fixes: bool = False


@dataclass(frozen=True)
class Answer:
    """What a check found for one target.

    Args:
        source: Name of the source.
        verdict: Whether it exports.
        diagnostics: Its findings.
        versions: Versions of what the process has imported.
        compared: For the difference between targets, if there is a program and several targets.
    """

    source: str
    verdict: Verdict
    diagnostics: tuple[Diagnostic, ...]
    versions: Mapping[str, str]
    compared: ComparedProgram | None = None


def import_for(wanted: Wanted) -> None:
    """Import what `answer_for` would import in each process."""
    import_loaded_libraries()
    from fakexport.archive import save  # noqa: F401 (the package fetches names on first use)


def answer_for(request: Request, index: int, wanted: Wanted, announce: Announce, *, root: Path) -> Answer:
    """Check one of the targets of a request; `root` is that of `save`.

    Raises:
        ValueError, TypeError: bad usage, as for `check`.
    """
    verdict, found, programs = TargetCheck(
        request, request.targets[index], announce, is_counted=wanted.progress
    ).outcome()
    # Saved in any case: a program that no archive can have is a finding of `check` too.
    saved = SavedPrograms.of(programs, root=root) if programs else None
    if saved is not None and saved.fault is not None:
        left = diagnose_not_saved(saved.fault, versions=versions())
        found = (*found, replace(left, targets=(verdict.target.name,)))
    if wanted.programs:
        verdict = replace(verdict, saved=saved)
    if wanted.fingerprints:
        verdict = replace(verdict, fingerprints={rank: fingerprint(each) for rank, each in programs.items()})
    return Answer(
        request.name,
        verdict,
        found,
        versions(),
        compared(programs[0]) if wanted.compared and programs else None,
    )
