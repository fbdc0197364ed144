"""Diagnostics of a check that ended early: FE001 and FE106, and the fix of FE202 on a rank."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fakexport.diagnostics import Diagnostic, Fix
from fakexport.rules import rule


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


_OF_SIZES = re.compile(r"\b(?:sizes?|shapes?|normalized_shape|dimensions?|dim|broadcast|split_sizes)\b", re.I)


def in_rank(found: Iterable[Diagnostic], ranks: int) -> Iterator[Diagnostic]:
    """Yield what was found, with a fix of its own for a size that does not fit on a rank.

    Args:
        found: Why a rank has no program.
        ranks: How many there are.
    """
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
