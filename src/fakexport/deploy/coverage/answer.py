"""Ask one runtime about a program."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from torch.export import ExportedProgram

from fakexport._torch.tracing_lock import one_at_a_time
from fakexport.error import FakexportError
from fakexport.report import RuntimeResult, RuntimeVerdict
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic

from ..artifact import CompileFailure
from .covered import Covered
from .runtimes import RUNTIMES, check_runtimes, versions_of

if TYPE_CHECKING:
    from ..executorch.description import Backend


@one_at_a_time
def runtime_verdict(program: ExportedProgram, runtime: str) -> RuntimeVerdict:
    """Ask a runtime whether it takes a program, and which operators it does not run itself.

    The runtime's own converter runs on the program, with zeros that use no memory instead of weights. Nothing
    is written. The diagnostics of a program that is refused are those of `compile`.

    Args:
        program: A program with or without weights. Not changed.
        runtime: A name from `RUNTIMES`.

    Raises:
        ValueError: The runtime is unknown.
        ModuleNotFoundError: The runtime's package is not installed.

    Example:
        >>> program = export(lambda: nn.Linear(4, 2).eval(), (torch.zeros(3, 4),))
        >>> runtime_verdict(program, "aoti").result
        'taken'
    """
    check_runtimes([runtime])
    begun = time.monotonic()
    verdict = RuntimeVerdict(runtime, versions_of(runtime), "taken")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The converters warn about their own code.
            found = _covered(program, runtime)
    except CompileFailure as failure:
        verdict = _refused(verdict, failure.diagnostics)
    except FakexportError as error:
        if not RUNTIMES[runtime].rule:
            return replace(verdict, result="unknown", notes=(str(error),))
        verdict = _refused(verdict, (rule(RUNTIMES[runtime].rule).diagnostic(notes=(str(error),)),))
    else:
        verdict = replace(
            verdict,
            result=_result(found),
            rewrites=found.rewrites,
            fallbacks=found.fallbacks,
            fallback_to=found.fallback_to,
            notes=found.notes,
        )
    return replace(verdict, seconds=time.monotonic() - begun)


def _result(found: Covered) -> RuntimeResult:
    if found.fallbacks:
        return "partly"
    if not found.is_certain:
        return "unknown"
    return "rewritten" if found.rewrites else "taken"


def _refused(verdict: RuntimeVerdict, found: tuple[Diagnostic, ...]) -> RuntimeVerdict:
    codes = tuple(each.code for each in found)
    return replace(verdict, result="refused", codes=codes, diagnostics=found)


def _covered(program: ExportedProgram, runtime: str) -> Covered:
    # Imported here, because each runtime needs a different optional package.
    match runtime.partition(":"):
        case ("aoti", *_):
            from ..aoti.coverage import cover_aoti

            return cover_aoti(program)
        case ("coreml", *_):
            from .coreml import cover_coreml

            return cover_coreml(program)
        case ("litert", *_):
            from .litert import cover_litert

            return cover_litert(program)
        case ("tensorrt", *_):
            from .tensorrt import cover_tensorrt

            return cover_tensorrt(program)
        case ("onnx", *_):
            from ..onnx.coverage import cover_onnx

            return cover_onnx(program)
        case (_, _, backend):
            from ..executorch.coverage import cover_executorch

            return cover_executorch(program, cast("Backend", backend or "portable"))
