"""Ask runtimes about the programs of an archive."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from fakexport.archive import load_bundle
from fakexport.checking.runtime_answers import runtime_verdicts
from fakexport.checking.target_answer import versions
from fakexport.emulation.devices import peak_bytes
from fakexport.exporting.program import facts_of, summarise, transfers
from fakexport.report import Report, TargetSpec, Timings, Verdict
from fakexport.rules.diagnostics import Diagnostic, fold


def report_on_archive(path: str | os.PathLike[str], runtimes: Sequence[str]) -> Report:
    """Return a report with the answers of `runtimes` for each program of an archive. Reads no weights.

    Args:
        path: A `.pt2` file, as for `load_bundle`. A row is named like its method; that of a single program,
            like its target.
    Raises:
        ArchiveError, OSError: as for `load_bundle`.
    """
    before, start = peak_bytes(), time.perf_counter()
    bundle = load_bundle(path, check_weights=False)
    loaded_s = time.perf_counter() - start
    verdicts: list[Verdict] = []
    found: list[Diagnostic] = []
    for method, program in bundle.items():
        topology = facts_of(program).topology or "cpu"
        target = TargetSpec(topology if len(bundle) == 1 else method, topology)
        start = time.perf_counter()
        answers = runtime_verdicts(program, runtimes)
        asked_s, peak = time.perf_counter() - start, peak_bytes()
        verdicts.append(
            Verdict(
                target=target,
                is_exportable=True,
                failed_stage=None,
                summary=summarise(program),
                transfers=transfers(program),
                timings=Timings(loaded_s, 0.0, asked_s, peak, peak - before),
                runtimes=answers,
            )
        )
        found += (replace(each, targets=(target.name,)) for answer in answers for each in answer.diagnostics)
    return Report(os.fspath(path), tuple(verdicts), (), fold(found), versions())
