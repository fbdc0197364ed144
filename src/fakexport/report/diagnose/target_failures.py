"""Diagnose a check that ended early (FE001, FE106, FE406), and adapt the diagnostics of a rank."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fakexport.error import InvalidValue
from fakexport.rules import rule
from fakexport.rules.diagnostics import Diagnostic, Fix

from .forward_repairs import known_repair
from .labels import labels_at


def diagnose_process_ended(reason: str, last_lines: Sequence[str], *, target: str) -> Diagnostic:
    """Return the diagnostic for a target whose process ended unexpectedly.

    Args:
        reason: How the process ended: `exit code 0`, `killed by SIGKILL`.
        last_lines: The last lines that the process printed.
        target: Name of the target.
    Reports:
        FE106.
    """
    written = tuple(f"last output: {line}" for line in last_lines)
    notes = (f"the process ended without a result: {reason}", *written)
    return rule("FE106").diagnostic(notes=notes, targets=(target,))


def diagnose_internal_fault(error: BaseException, *, versions: Mapping[str, str]) -> Diagnostic:
    """Return the diagnostic for an internal error of fakexport.

    Reports:
        FE001.
    """
    frame = next(reversed(traceback.extract_tb(error.__traceback__)), None)
    place = f"{frame.filename}:{frame.lineno} in {frame.name}" if frame else "unknown"
    return rule("FE001").diagnostic(
        notes=(
            f"{type(error).__name__}: {error}",
            f"raised at {place}",
            "versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
        ),
        fix=Fix("please report it with these lines and the command; `--debug` prints the full traceback"),
    )


def diagnose_not_saved(fault: Exception, *, versions: Mapping[str, str]) -> Diagnostic:
    """Return the diagnostic for a target whose programs cannot be saved.

    Reports:
        FE406; FE001 for an internal error.
    """
    if not isinstance(fault, InvalidValue):
        return diagnose_internal_fault(fault, versions=versions)
    return rule("FE406").diagnostic(
        labels=labels_at(getattr(fault, "span", None), "an archive cannot store this"),
        notes=(str(fault),),
        fix=Fix(known_repair("stored", str(fault)) or _STORABLE),
    )


_STORABLE = (
    "let `forward` accept, return and compute only strided tensors and Python bool, int, float and str"
)
_OF_SIZES = re.compile(r"\b(?:sizes?|shapes?|normalized_shape|dimensions?|dim|broadcast|split_sizes)\b", re.I)


def in_rank(found: Iterable[Diagnostic], ranks: int) -> Iterator[Diagnostic]:
    """Yield the diagnostics of a rank, with a specific fix if sizes do not match the shards of the rank."""
    for each in found:
        if each.code != "FE202" or not any(map(_OF_SIZES.search, each.notes)):
            yield each
            continue
        yield replace(
            each,
            notes=(
                *each.notes,
                f"with this plan, each of the {ranks} ranks computes only a shard of the heads and features",
            ),
            fix=Fix(
                "if the line uses a size of the whole model, such as the number of heads, read "
                "it from the tensor instead: `view(*x.shape[:-1], -1, head_dim)`; or remove the "
                "module from the plan (--parallel tp=N,plan=FILE.json with null for it)"
            ),
        )
