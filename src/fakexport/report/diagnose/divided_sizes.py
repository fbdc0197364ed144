"""Sizes that need several programs: offer to divide them, and check the programs that divide them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from torch.export import ExportedProgram

from fakexport._torch.tracing.guard_locations import Guard, guards_of_program
from fakexport.exporting.capture import guard_span
from fakexport.exporting.guards import refused_size
from fakexport.exporting.interface import UnreadableCondition
from fakexport.exporting.program import ProgramSummary
from fakexport.files.documents import SizeRange, sizes_text
from fakexport.models import DynamicDims
from fakexport.report.diagnose.dynamic_dim_checks import example_shapes
from fakexport.report.diagnose.labels import finding, place_text
from fakexport.report.diagnose.marked_code import is_branch
from fakexport.rules.diagnostics import Diagnostic, Span

_LEAST, _MOST = 2, 2**40  # torch assumes that a dynamic size is neither 0 nor 1.


def diagnose_refused_sizes(
    programs: Iterable[ExportedProgram], sizes: Sequence[SizeRange]
) -> Diagnostic | None:
    """Report a size that programs must accept, according to `--dynamic`, but do not.

    Reports:
        FE302.
    """
    for program in programs:
        try:
            refused = refused_size(program, sizes)
        except UnreadableCondition as error:
            refused = str(error)
        if refused is None:
            continue
        limits = _limits(program)
        for own in sizes:
            firsts = [first for first in limits.get(own.place, {}) if first in own and first > own.min]
            if firsts:
                span = limits[own.place][firsts[0]]
                ranges = "|".join(_ranges(sorted(firsts), own.min, own.max))
                return finding("limited_size", span, size=str(own), name=own.place, ranges=ranges)
        return finding("refused_size", sizes=sizes_text(sizes), refused=refused)
    return None


def division_notes(program: ExportedProgram, summary: ProgramSummary, dynamic: DynamicDims) -> Iterator[str]:
    """Yield a sentence for each size that `--dynamic auto` restricted, with an option that divides the sizes.

    These are sizes that a branch of the model limits to a range, and a batch of 1 in the example inputs.
    """
    if not dynamic.is_auto:
        return
    declared = {dim.place for dim in dynamic.dims}
    for name, firsts in _limits(program).items():
        if name not in declared:
            ranges = "|".join(_ranges(sorted(firsts), _LEAST, None))
            span = next(iter(firsts.values()))
            why = "" if span is None else f", because of {place_text(span)}"
            yield (
                f"the program does not accept all sizes of {name}{why}: `--dynamic auto --dynamic "
                f"'{name}={ranges}'` exports a program for each range"
            )
    yield from _batch_of_one(program, summary, declared)


def _limits(program: ExportedProgram) -> dict[str, dict[int, Span | None]]:
    """Return the sizes at which the model takes another branch, by dimension, with the line of the branch."""
    found: dict[str, dict[int, Span | None]] = {}
    for guard in guards_of_program(program):
        if guard.dims and (first := _first_of_second_range(guard)) is not None:
            span = guard_span(guard)
            for name in guard.dims if is_branch(span) else ():
                found.setdefault(name, {})[first] = span
    return found


def _first_of_second_range(guard: Guard) -> int | None:
    """Return the size at which a guard begins to hold, or no longer holds; None for any other guard."""

    def holds(size: int) -> bool:
        return guard.first_refused((size,)) is None

    if holds(_LEAST) is holds(_MOST):
        return None
    is_lower = holds(_LEAST)
    return bisect_left(range(_MOST), True, lo=_LEAST, key=lambda size: holds(size) is not is_lower)


def _ranges(firsts: Sequence[int], low: int, high: int | None) -> Iterator[str]:
    """Yield the ranges into which these first sizes divide the sizes from `low` to `high`."""
    for first in firsts:
        yield str(low) if first == low + 1 else f"{low}..{first - 1}"
        low = first
    yield str(low) if low == high else f"{low}..{'' if high is None else high}"


def _batch_of_one(program: ExportedProgram, summary: ProgramSummary, declared: set[str]) -> Iterator[str]:
    inputs = [value for value in summary.inputs if value.kind == "user_input"]
    ones = [each.name for each in inputs if each.shape and each.shape[0] == "1"]
    if not ones or f"{ones[0]}.0" in declared:
        return
    what, option = f"{ones[0]}.0 is fixed to 1, as in the example inputs", f"--dynamic '{ones[0]}.0=1|2..'"
    shapes = example_shapes(program, summary)
    if any(each.name not in shapes or None in shapes[each.name] for each in inputs):
        yield f"{what}: with larger example inputs, `{option}` also exports a program for other sizes"
        return
    specs = []
    for each in inputs:
        sizes = [_LEAST if not dim and size == 1 else size for dim, size in enumerate(shapes[each.name])]
        specs.append(f"--input '{each.name}={each.dtype}[{','.join(map(str, sizes))}]'")
    yield f"{what}: `{' '.join(specs)} --dynamic auto {option}` also exports a program for other sizes"
