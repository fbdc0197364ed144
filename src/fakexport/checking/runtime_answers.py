"""Ask runtimes about an exported program, each in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch.export import ExportedProgram

from fakexport._torch.quiet_logs import torch_logs_silenced
from fakexport.checking.isolation import forked, why_shared
from fakexport.deploy import RUNTIMES, runtime_verdict
from fakexport.error import type_and_line
from fakexport.files.processes import NoAnswer, Send
from fakexport.report import RuntimeVerdict
from fakexport.report.diagnose import diagnose_internal_fault
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic


def runtime_verdicts(program: ExportedProgram, runtimes: Sequence[str]) -> tuple[RuntimeVerdict, ...]:
    """Return the answer of each runtime, in order. Converters run native code, which can end a process."""
    calls = [partial(_answer, program, runtime) for runtime in runtimes]
    if why_shared() is not None:
        return tuple(call(lambda message: None) for call in calls)
    found = forked(calls, lambda index, message: None)
    return tuple(
        _unknown(runtime, each) if isinstance(each, NoAnswer) else each
        for runtime, each in zip(runtimes, found, strict=True)
    )


def _answer(program: ExportedProgram, runtime: str, send: Send) -> RuntimeVerdict:
    try:
        with torch_logs_silenced():
            return runtime_verdict(program, runtime)
    except Exception as error:  # A failure of one converter must not hide the other answers.
        found = diagnose_internal_fault(error, versions={"runtime": runtime})
        note = f"asking {runtime} failed: {type_and_line(error)}"
        return _without_answer(runtime, note, found)


def _unknown(runtime: str, ended: NoAnswer) -> RuntimeVerdict:
    note = f"the process that asked {runtime} ended without an answer: {ended.reason}"
    found = rule(RUNTIMES[runtime].rule or "FE106").diagnostic(notes=(note, *ended.last_lines[-1:]))
    return _without_answer(runtime, note, found)


def _without_answer(runtime: str, note: str, found: Diagnostic) -> RuntimeVerdict:
    return RuntimeVerdict(runtime, "", "unknown", notes=(note,), codes=(found.code,), diagnostics=(found,))
