"""Check declared dynamic dimensions against the program's guards: FE207, FE302, FE304, FE305."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from fakexport._torch.tracing.guard_locations import Guard, guards_of_program
from fakexport._torch.tracing.symbolic_numbers import hint_of
from fakexport.exporting.capture import guard_span
from fakexport.exporting.program import ProgramSummary, facts_of
from fakexport.models import Bounds, DynamicDim, DynamicDims, library_of
from fakexport.report.diagnose.labels import finding, labels_at, place_text
from fakexport.report.diagnose.marked_code import is_branch
from fakexport.report.diagnose.size_repairs import division_repair
from fakexport.rules import rule
from fakexport.rules.diagnostics import Change, Diagnostic, Fix, Span

# Tested sizes of a declared range: the first `_SMALL` sizes, powers of two, and both ends.
_SMALL = 64
_LARGEST = 2**20


def diagnose_declared_dims(
    program: ExportedProgram, summary: ProgramSummary, dynamic: DynamicDims
) -> Iterator[Diagnostic]:
    """Report declared dimensions that the program restricts, and those of inputs that the program ignores.

    `torch.export` keeps a dimension dynamic but silently narrows its range, so the declared bounds are
    compared with the guards of the trace. Without declared bounds, the bounds of the program are accepted.

    Reports:
        FE302 if a size in a dimension's declared range violates a guard, FE304 if two dimensions with
            different ranges must be equal, FE305 if the program does not read the input.
    """
    declared = {dim.place: dim for dim in dynamic.dims}
    guards = guards_of_program(program) if declared else []
    yield from _narrowed(guards, declared, summary, program)
    for guard in guards:
        yield from _unequal(guard, declared)
    yield from _related(guards, declared, summary, program)
    read = {node.name for node in program.graph.nodes if node.users}
    unread = {value.name for value in summary.inputs if value.node and value.node not in read}
    for dim in dynamic.dims:
        if dim.input_name in unread:
            yield finding("unused_dimension", dim=dim.place, input=dim.input_name)


def unproven_sizes(dynamic: DynamicDims) -> tuple[str, ...]:
    """Return one sentence for each dimension that was declared with a minimum of 0 or 1.

    `torch.export` silently raises such a minimum to 2. The program has no guard against the smaller sizes: it
    may compute correctly, fail, or return wrong results for them. Dimensions without a declared minimum are
    skipped.

    Source: `torch/fx/experimental/symbolic_shapes.py:ShapeEnv.create_symbol`, `specialize_zero_one`.
    """
    return tuple(
        (
            f"{dim.place} was declared as {_range(dim)}, but torch assumes sizes of at "
            "least 2 while tracing: the program was not verified for "
        )
        + ("sizes 0 and 1" if dim.min == 0 else "size 1")
        for dim in dynamic.dims
        if dim.min is not None and dim.min < 2
    )


def order_notes(program: ExportedProgram, dynamic: DynamicDims) -> tuple[str, ...]:
    """Return a sentence for each relation of two sizes that the program requires, and no error reports.

    These are guards such as `a <= b` unless both dimensions are declared, and `a == b` if both dimensions are
    declared with the same range.
    """
    declared = {dim.place: dim for dim in dynamic.dims}
    found: dict[str, Span | None] = {}
    for guard in guards_of_program(program):
        names = _names_of_equality(guard, declared)
        if guard.order is not None and not set(guard.dims) <= declared.keys():
            found[guard.order] = guard_span(guard)
        elif len(names) == 2 and len(_ranges(names, declared)) == 1 and not _is_one(names, declared):
            found[" == ".join(names)] = guard_span(guard)
    return tuple(
        f"the program accepts only inputs with {order}" + (f", because of {place_text(span)}" if span else "")
        for order, span in found.items()
    )


def diagnose_numbers(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Report numbers among the inputs whose values are constants in the program.

    For a model from a library, all numbers of one input are reported once, with a fix that does not change
    the model's code.

    Reports:
        FE207.
    """
    numbers = _numbers(program)
    if library_of(facts_of(program).source) is not None:
        inputs: dict[str, list[str]] = {}
        for name, value in numbers:
            inputs.setdefault(_OF_LIST.sub("", name), []).append(repr(value))
        for name, values in inputs.items():
            yield finding("number_of_library", name=name, value=", ".join(values))
        return
    for name, value in numbers:
        yield finding("number", name=name, value=repr(value))


_OF_LIST = re.compile(r"(_[0-9]+)+$")


def _numbers(program: ExportedProgram) -> Iterator[tuple[str, int | float]]:
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT or not isinstance(spec.arg, ConstantArgument):
            continue
        value = spec.arg.value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield spec.arg.name, value


def _narrowed(
    guards: Sequence[Guard],
    declared: Mapping[str, DynamicDim],
    summary: ProgramSummary,
    program: ExportedProgram,
) -> Iterator[Diagnostic]:
    """Report each line with a guard that rejects a size of a declared range."""
    found: dict[tuple[str, str, int], Diagnostic] = {}
    for guard in guards:
        name = next((name for name in guard.dims if name in declared), None)
        refused = None if name is None else guard.first_refused(_sizes(declared[name], summary))
        if name is None or refused is None:
            continue
        span = guard_span(guard)
        place = (name, span.path, span.line) if span is not None else (name, guard.expression, 0)
        dim = declared[name]
        if place not in found:
            found[place] = rule("FE302").diagnostic(
                labels=labels_at(span, f"restricts {name} ({guard.expression})"),
                notes=(f"{name} was declared as {_range(dim)}, but the program rejects size {refused}",),
                fix=_range_repair(name, declared, guards, span, summary, program),
            )
    yield from found.values()


def _range_repair(
    name: str,
    declared: Mapping[str, DynamicDim],
    guards: Sequence[Guard],
    span: Span | None,
    summary: ProgramSummary,
    program: ExportedProgram,
) -> Fix:
    """Return a fix that makes the program accept the declared range, or declares the accepted range."""
    dim = declared[name]
    own = [guard for guard in guards if name in guard.dims]
    sizes = _sizes(dim, summary)
    taken = [n for n in sizes if not _refused(own, n)]
    if (divided := division_repair(span)) is not None:
        return divided
    kept = [guard for guard in own if _ONE.search(guard.expression)]
    others = [guard for guard in own if guard not in kept]
    larger = next((n for n in sizes if _refused(kept, n) and not _refused(others, n)), None)
    if larger is not None:
        inputs = _inputs_with(program, summary, dim, larger)
        options = " ".join(f"--input '{spec}'" for spec in inputs)
        smaller = _redeclared(dim, declared, (larger, dim.max))
        return Fix(
            "pass a larger example input: with the current input, the model computes a size of 1 from "
            f"{name}, and torch specializes on 1. Also declare only the larger sizes: "
            f"{options} {_options(smaller)}",
            changes=(Change(inputs=inputs, dynamic=smaller),),
        )
    if len(taken) < 2:
        return Fix(f"declare {name} static, or read the size from the tensor in this line")
    if taken == [n for n in sizes if taken[0] <= n <= taken[-1]]:
        high = None if taken[-1] == sizes[-1] and dim.max is None else taken[-1]
        smaller = _redeclared(dim, declared, (taken[0], high))
        text = f"declare a smaller range for {name}: `{_options(smaller)}`"
        if is_branch(span):
            parts = _redeclared(dim, declared, *_divided(dim, taken[0], high))
            text += f"; or export a program for each range: `{_options(parts)}`"
        if any(each.place == name for each in facts_of(program).sizes):
            text += ". Add the other ranges that you declared"
        return Fix(text, changes=(Change(dynamic=smaller),))
    return Fix(
        f"use `--dynamic auto` instead of a range: this line accepts only some sizes of {name} "
        f"({', '.join(map(str, taken[:3]))}, ...), which no range describes. The program then rejects all "
        "other sizes",
        changes=(Change(dynamic=("auto",)),),
    )


def _redeclared(dim: DynamicDim, declared: Mapping[str, DynamicDim], *ranges: Bounds) -> tuple[str, ...]:
    """Return values of `--dynamic` that declare other sizes for a dimension, and for all with its name."""
    named = [each for each in declared.values() if each.symbol == dim.symbol]
    return _with_name([dim] if dim.symbol is None else named, dim.symbol, *ranges)


def _divided(dim: DynamicDim, low: int, high: int | None) -> Iterator[Bounds]:
    """Divide a declared range into the accepted sizes and the others."""
    least = 2 if dim.min is None else dim.min
    if low > least:
        yield least, low - 1
    yield low, high
    if high is not None and high != dim.max:
        yield high + 1, dim.max


def _options(dynamic: Iterable[str]) -> str:
    return " ".join(f"--dynamic '{spec}'" if "|" in spec else f"--dynamic {spec}" for spec in dynamic)


def _refused(guards: Iterable[Guard], size: int) -> bool:
    return any(guard.first_refused((size,)) is not None for guard in guards)


def _inputs_with(
    program: ExportedProgram, summary: ProgramSummary, dim: DynamicDim, size: int
) -> tuple[str, ...]:
    """Return the example inputs, with one dimension resized, as values of `--input`."""
    shapes, found = example_shapes(program, summary), []
    for value in summary.inputs:
        if value.kind != "user_input" or value.name not in shapes:
            continue
        sizes = shapes[value.name]
        if value.name == dim.input_name:
            sizes[dim.dim] = size
        found.append(f"{value.name}={value.dtype}[{','.join(map(str, sizes))}]")
    return tuple(found)


def example_shapes(program: ExportedProgram, summary: ProgramSummary) -> dict[str, list[int | None]]:
    """Map the name of each tensor input to the sizes of the example."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    return {
        value.name: [n if isinstance(n, int) else hint_of(n) for n in nodes[value.node].meta["val"].shape]
        for value in summary.inputs
        if value.shape is not None and value.node in nodes
    }


# Guards that require an expression to be 1, possibly multiplied: `Eq(3*Max(1, s0), 3)`.
_ONE = re.compile(r"^Eq\((?:.*, 1|(\d+)\*.*, \1)\)$")
_MOST_TRIED = 12


def _related(
    guards: Sequence[Guard],
    declared: Mapping[str, DynamicDim],
    summary: ProgramSummary,
    program: ExportedProgram,
) -> Iterator[Diagnostic]:
    """Report lines that relate two declared sizes, for example by requiring that one is larger.

    Sizes that another guard requires to be equal, or that have the same name, are not reported if the line
    accepts equal sizes.
    """
    seen: set[tuple[str, ...]] = set()
    equal = {tuple(_names_of_equality(guard, declared)) for guard in guards}
    shapes = example_shapes(program, summary)
    for guard in guards:
        if guard.is_equality or len(guard.dims) != 2 or not set(guard.dims) <= declared.keys():
            continue
        first, second = (_sizes(declared[name], summary) for name in guard.dims)
        alone = guard.first_refused_by_all(sorted({*first, *second}))
        pair = guard.first_refused_pair(first[:_MOST_TRIED], second[:_MOST_TRIED])
        is_one = _is_one(guard.dims, declared)
        are_equal = is_one or tuple(sorted(guard.dims)) in equal
        refused = (alone, alone) if is_one and alone is not None else pair
        if refused is None or guard.dims in seen or (alone is None and are_equal):
            continue
        seen.add(guard.dims)
        sizes = " and ".join(f"{name}={n}" for name, n in zip(guard.dims, refused, strict=True))
        both = " and ".join(guard.dims)
        dims = [declared[name] for name in guard.dims]
        examples = {shapes[dim.input_name][dim.dim] if dim.input_name in shapes else None for dim in dims}
        if is_one:
            fix = Fix(f"declare a smaller range for {both}")
        elif alone is None and len(examples) == 1:
            fix = _one_name(guard.dims, declared, "if {names} are always equal, give them one name")
        else:
            fix = Fix(
                f"export one program for each relation between {both} (such as larger or smaller), each with "
                "example inputs in which this relation holds"
            )
        yield rule("FE302").diagnostic(
            labels=labels_at(guard_span(guard), f"relates {both} ({guard.expression})"),
            notes=(
                f"{both} were declared as {'one size' if is_one else 'independent'}, but the program does "
                f"not accept {sizes}",
            ),
            fix=fix,
        )


def _is_one(names: Iterable[str], declared: Mapping[str, DynamicDim]) -> bool:
    """Return whether all these dimensions are declared with the same name."""
    symbols = {declared[name].symbol for name in names}
    return len(symbols) == 1 and None not in symbols


def _one_name(names: Sequence[str], declared: Mapping[str, DynamicDim], message: str) -> Fix:
    """Return a fix that declares that the dimensions always have the same size, in their common range."""
    symbols = {declared[name].symbol for name in names} - {None}
    members = [dim for name, dim in declared.items() if name in names or dim.symbol in symbols]
    known = {dim.symbol for dim in declared.values()}
    new = next(name for name in ("size", *(f"size{n}" for n in range(len(declared)))) if name not in known)
    specs = _with_name(members, min(filter(None, symbols), default=new), _common_range(members))
    text = f"{message.format(names=' and '.join(names))}: `{_options(specs)}`"
    return Fix(text, changes=(Change(dynamic=specs),))


def _with_name(dims: Sequence[DynamicDim], symbol: str | None, *ranges: Bounds) -> tuple[str, ...]:
    """Return values of `--dynamic` that declare one name and its ranges for these dimensions."""
    first, *others = (DynamicDim(dim.input_name, dim.dim, symbol=symbol) for dim in dims)
    return (str(replace(first, ranges=ranges)), *map(str, others))


def _unequal(guard: Guard, declared: Mapping[str, DynamicDim]) -> Iterator[Diagnostic]:
    names = _names_of_equality(guard, declared)
    if len(names) == 2 and len(_ranges(names, declared)) == 2:
        both = " and ".join(f"{name} as {_range(declared[name])}" for name in names)
        yield rule("FE304").diagnostic(
            labels=labels_at(guard_span(guard), f"requires {' and '.join(names)} to be equal"),
            notes=(f"declared: {both}",),
            fix=_one_name(names, declared, "give {names} one name"),
        )


def _names_of_equality(guard: Guard, declared: Mapping[str, DynamicDim]) -> list[str]:
    """Return the declared dimensions that a guard requires to be equal, in alphabetical order."""
    return sorted(name for name in guard.dims if name in declared) if guard.is_equality else []


def _ranges(names: Iterable[str], declared: Mapping[str, DynamicDim]) -> set[Bounds]:
    return {(declared[name].min, declared[name].max) for name in names}


def _common_range(dims: Iterable[DynamicDim]) -> Bounds:
    """Return the bounds that all these dimensions accept."""
    lows, highs = zip(*((dim.min, dim.max) for dim in dims), strict=True)
    low = max((n for n in lows if n is not None), default=None)
    return low, min((n for n in highs if n is not None), default=None)


def _range(dim: DynamicDim) -> str:
    return f"{'' if dim.min is None else dim.min}..{'' if dim.max is None else dim.max}"


def _sizes(dim: DynamicDim, summary: ProgramSummary) -> list[int]:
    """Return the sizes of a declared range to test. They start at 2: guards do not cover sizes 0 and 1."""
    own = next((value.shape for value in summary.inputs if value.name == dim.input_name), None)
    known = summary.range_constraints.get(own[dim.dim]) if own else None
    low = max(dim.min or (known.lower if known else None) or 0, 2)
    high = dim.max or (known.upper if known else None) or _LARGEST
    powers = [2**n for n in range(21)]
    return sorted({n for n in (*range(low, low + _SMALL), *powers, high - 1, high) if low <= n <= high})
