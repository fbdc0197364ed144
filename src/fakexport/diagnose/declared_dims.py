"""Check the declared dynamic dimensions against the program: FE302, FE304, FE305; FE207."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from fakexport._torch.guard_locations import Guard, guards_of_program
from fakexport.capture import DynamicDim, DynamicDims, guard_span
from fakexport.diagnose.labels import labels_at
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program import ProgramSummary, facts_of
from fakexport.rules import rule

# Sizes of a declared range that are tried: all small ones, powers of two, and the ends.
_SMALL = 64
_LARGEST = 2**20


def diagnose_declared_dims(
    program: ExportedProgram, summary: ProgramSummary, dynamic: DynamicDims
) -> Iterator[Diagnostic]:
    """Yield what was declared and does not hold: the program takes fewer sizes, or does not read the input.

    `torch.export` keeps a dimension dynamic and narrows its range silently; here, the declared bounds are
    compared with the guards of the trace. Where no bound was declared, the program's own is right.

    Reports:
        FE302 for a dimension that has a refused size in its declared range, FE304 for two dimensions with
        different ranges that must be equal, FE305.
    """
    declared = {f"{dim.input_name}.{dim.dim}": dim for dim in dynamic.dims}
    for guard in guards_of_program(program) if declared else ():
        yield from _narrowed(guard, declared, summary)
        yield from _unequal(guard, declared)
    read = {node.name for node in program.graph.nodes if node.users}
    unread = {value.name for value in summary.inputs if value.node and value.node not in read}
    for dim in dynamic.dims:
        if dim.input_name in unread:
            yield rule("FE305").diagnostic(
                notes=(
                    f"{dim.input_name}.{dim.dim} was declared dynamic; no operator reads {dim.input_name}",
                ),
                fix=Fix(f"remove --dynamic {dim.input_name}.{dim.dim}, or pass inputs that use it"),
            )


def unproven_sizes(dynamic: DynamicDims) -> tuple[str, ...]:
    """Return one sentence for each dimension that was declared from 0 or 1 on: the program has it from 2 on.

    `torch.export` raises such a bound to 2 silently, and lets the program take the smaller sizes
    without a guard: it may be right for them, fail inside, or be wrong. Where no bound was given, none
    was promised.

    Source: `torch/fx/experimental/symbolic_shapes.py:ShapeEnv.create_symbol`, `specialize_zero_one`.
    """
    return tuple(
        f"{dim.input_name}.{dim.dim} was declared as {_range(dim)}, but torch traces sizes from 2: "
        + ("sizes 0 and 1 are" if dim.min == 0 else "size 1 is")
        + " accepted without a guard and not verified"
        for dim in dynamic.dims
        if dim.min is not None and dim.min < 2
    )


def diagnose_numbers(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Return the numbers among the inputs, whose values the program holds.

    Those of a library's model are in one finding for an input: fakexport derived them, and a model that got
    numbers reads them.

    Reports:
        FE207.
    """
    numbers = _numbers(program)
    if facts_of(program).source.startswith(_LIBRARIES):
        inputs: dict[str, list[str]] = {}
        for name, value in numbers:
            inputs.setdefault(_OF_LIST.sub("", name), []).append(repr(value))
        for name, values in inputs.items():
            yield rule("FE207").diagnostic(
                notes=(f"{name} is {', '.join(values)} in the program, which accepts no other",),
                fix=Fix(
                    f"export one program for each value of {name} that is used: the model reads it in "
                    "Python, and no program takes it as an input"
                ),
            )
        return
    for name, value in numbers:
        yield rule("FE207").diagnostic(
            notes=(f"{name} is {value!r} in the program, which accepts no other",),
            fix=Fix(f"pass {name} as a 0-d (scalar) tensor, or remove it from the inputs"),
        )


_LIBRARIES = ("hf:", "diffusers:", "timm:")
_OF_LIST = re.compile(r"(_[0-9]+)+$")


def _numbers(program: ExportedProgram) -> Iterator[tuple[str, int | float]]:
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT or not isinstance(spec.arg, ConstantArgument):
            continue
        value = spec.arg.value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield spec.arg.name, value


def _narrowed(
    guard: Guard, declared: Mapping[str, DynamicDim], summary: ProgramSummary
) -> Iterator[Diagnostic]:
    name = next((name for name in guard.dims if name in declared), None)
    refused = None if name is None else guard.first_refused(_sizes(declared[name], summary))
    if name is None or refused is None:
        return
    dim = declared[name]
    yield rule("FE302").diagnostic(
        labels=labels_at(guard_span(guard), f"restricts {name} ({guard.expression})"),
        notes=(f"{name} was declared as {_range(dim)}; the program refuses the size {refused}",),
        fix=Fix(f"declare a smaller range for {name}"),
    )


def _unequal(guard: Guard, declared: Mapping[str, DynamicDim]) -> Iterator[Diagnostic]:
    names = sorted(name for name in guard.dims if name in declared)
    ranges = {(declared[name].min, declared[name].max) for name in names}
    if guard.is_equality and len(names) == 2 and len(ranges) == 2:
        both = " and ".join(f"{name} as {_range(declared[name])}" for name in names)
        yield rule("FE304").diagnostic(
            labels=labels_at(guard_span(guard), f"needs {' and '.join(names)} to be equal"),
            notes=(f"declared: {both}",),
            fix=Fix(f"declare the same range for {' and '.join(names)}"),
        )


def _range(dim: DynamicDim) -> str:
    return f"{'' if dim.min is None else dim.min}..{'' if dim.max is None else dim.max}"


def _sizes(dim: DynamicDim, summary: ProgramSummary) -> list[int]:
    """From 2 on: a program says nothing of 0 and 1, which have rules of their own in torch."""
    own = next((value.shape for value in summary.inputs if value.name == dim.input_name), None)
    known = summary.range_constraints.get(own[dim.dim]) if own else None
    low = max(dim.min or (known.lower if known else None) or 0, 2)
    high = dim.max or (known.upper if known else None) or _LARGEST
    powers = [2**n for n in range(21)]
    return sorted({n for n in (*range(low, low + _SMALL), *powers, high - 1, high) if low <= n <= high})
