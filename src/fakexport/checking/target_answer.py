"""What a check of a target is asked for, and its result, which can be passed between processes."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fakexport._version import __version__
from fakexport.exporting.capture import loaded_libraries
from fakexport.exporting.guards import InputSizes
from fakexport.exporting.program import ComparedProgram
from fakexport.report import Verdict
from fakexport.rules.diagnostics import Diagnostic


def versions() -> dict[str, str]:
    """Return the versions of imported packages that a report depends on."""
    return {
        "fakexport": __version__,
        "torch": str(torch.__version__),
        **loaded_libraries(),
        "python": platform.python_version(),
    }


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which optional parts of a result are wanted. Each part takes time.

    Args:
        progress: The number of traced blocks and the current module, during the trace.
        programs: The saved programs.
        stages: The saved programs are the pipeline stages, if the model is cut into stages.
        fingerprints: Fingerprints of the programs, for a lock.
        compared: Data to compare the program with the programs of other targets.
        tried_fixes: Whether each fix of the report works, if it can be tried within one minute.
        runtimes: The answers of these runtimes.
    """

    progress: bool = False
    programs: bool = False
    stages: bool = False
    fingerprints: bool = False
    compared: bool = False
    tried_fixes: bool = False
    runtimes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Result of a check for one target; it can be passed between processes.

    Args:
        source: Name of the source.
        versions: Versions of the packages that the process has imported.
        compared: Data to compare targets, if the model exports and the check has several targets.
        input_sizes: The sizes of the program's inputs, if several programs divide the sizes among them.
    """

    source: str
    verdict: Verdict
    diagnostics: tuple[Diagnostic, ...]
    versions: Mapping[str, str]
    compared: ComparedProgram | None = None
    input_sizes: InputSizes | None = None

    @property
    def has_errors(self) -> bool:
        """Whether a finding is an error."""
        return any(found.severity == "error" for found in self.diagnostics)
