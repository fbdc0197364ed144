"""Diagnostics of a check that ended early: FE001, FE106, FE406, and the fix of FE202 on a rank."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fakexport.diagnostics import Diagnostic, Fix
from fakexport.error import InvalidValue
from fakexport.rules import rule

from .forward_repairs import known_repair
from .labels import labels_at


def diagnose_process_ended(reason: str, last_lines: Sequence[str], *, target: str) -> Diagnostic:
    """Return what to report if the process that checks a target ends by itself.

    Args:
        reason: `exit code 0`, `killed by SIGKILL`.
        last_lines: The end of what it wrote.
        target: Name of the target.
    Reports:
        FE106.
    """
    written = tuple(f"it wrote: {line}" for line in last_lines)
    return rule("FE106").diagnostic(notes=(f"the process ended with {reason}", *written), targets=(target,))


def diagnose_internal_fault(error: BaseException, *, versions: Mapping[str, str]) -> Diagnostic:
    """Return what to report when fakexport itself raised.

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
        fix=Fix("report it with these lines and the command; `--debug` prints the whole traceback"),
    )


def diagnose_not_saved(fault: Exception, *, versions: Mapping[str, str]) -> Diagnostic:
    """Return what to report if the programs of a target cannot be saved.

    Reports:
        FE406; FE001 for a fault of our own.
    """
    if not isinstance(fault, InvalidValue):
        return diagnose_internal_fault(fault, versions=versions)
    return rule("FE406").diagnostic(
        labels=labels_at(getattr(fault, "span", None), "no archive can have this"),
        notes=(str(fault),),
        fix=Fix(known_repair("stored", str(fault)) or _STORABLE),
    )


_STORABLE = "let `forward` take, return and compute strided tensors and Python's bool, int, float and str"
_OF_SIZES = re.compile(r"\b(?:sizes?|shapes?|normalized_shape|dimensions?|dim|broadcast|split_sizes)\b", re.I)


def in_rank(found: Iterable[Diagnostic], ranks: int) -> Iterator[Diagnostic]:
    """Yield what was found, with a fix of its own for a size that does not fit on a rank."""
    for each in found:
        if each.code != "FE202" or not any(map(_OF_SIZES.search, each.notes)):
            yield each
            continue
        yield replace(
            each,
            notes=(
                *each.notes,
                f"each of {ranks} ranks has a part of the heads and features that the plan shards",
            ),
            fix=Fix(
                "where the line has a size of the whole model, such as the number of heads, read it off the "
                "tensor: `view(*x.shape[:-1], -1, head_dim)`; or leave the module out of the plan "
                "(--parallel tp=N,plan=FILE.json with null for it)"
            ),
        )
