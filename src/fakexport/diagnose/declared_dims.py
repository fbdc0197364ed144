"""Check the declared dynamic dimensions against the program: FE302, FE304, FE305; FE207."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from fakexport._torch.guard_locations import Guard, guards_of_program
from fakexport._torch.symbolic_numbers import hint_of
from fakexport.capture import DynamicDim, DynamicDims, guard_span
from fakexport.diagnose.labels import labels_at, place_text
from fakexport.diagnose.size_repairs import division_repair
from fakexport.diagnostics import Change, Diagnostic, Fix, Span
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
    guards = guards_of_program(program) if declared else []
    yield from _narrowed(guards, declared, summary, program)
    for guard in guards:
        yield from _unequal(guard, declared)
    yield from _related(guards, declared, summary)
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


def order_notes(program: ExportedProgram, dynamic: DynamicDims) -> tuple[str, ...]:
    """Return one sentence for each two dimensions, not declared, of which one has to be the greater."""
    declared = {f"{dim.input_name}.{dim.dim}" for dim in dynamic.dims}
    found = {
        guard.order: guard_span(guard)
        for guard in guards_of_program(program)
        if guard.order is not None and not set(guard.dims) <= declared
    }
    return tuple(
        f"the program takes inputs with {order} only" + (f", asked at {place_text(span)}" if span else "")
        for order, span in found.items()
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
    guards: Sequence[Guard],
    declared: Mapping[str, DynamicDim],
    summary: ProgramSummary,
    program: ExportedProgram,
) -> Iterator[Diagnostic]:
    """Report each line that refuses a size of a declared range."""
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
                notes=(f"{name} was declared as {_range(dim)}; the program refuses the size {refused}",),
                fix=_range_repair(name, dim, guards, span, summary, program),
            )
    yield from found.values()


def _range_repair(
    name: str,
    dim: DynamicDim,
    guards: Sequence[Guard],
    span: Span | None,
    summary: ProgramSummary,
    program: ExportedProgram,
) -> Fix:
    """Return what makes a program take the sizes that were declared, or what it takes as a range."""
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
        smaller = f"{name}={larger}..{'' if dim.max is None else dim.max}"
        return Fix(
            f"pass a larger example, and declare what is larger: {options} --dynamic {smaller}. A size that "
            f"the model computes of {name} is 1 in this example, which torch treats as a constant",
            changes=(Change(inputs=inputs, dynamic=(smaller,)),),
        )
    if len(taken) < 2:
        return Fix(f"declare {name} static, or take the size from the tensor in this line")
    if taken == [n for n in sizes if taken[0] <= n <= taken[-1]]:
        high = "" if taken[-1] == sizes[-1] and dim.max is None else taken[-1]
        smaller = f"{name}={taken[0]}..{high}"
        return Fix(
            f"declare a smaller range for {name}: `--dynamic {smaller}`",
            changes=(Change(dynamic=(smaller,)),),
        )
    return Fix(
        f"declare no range: `--dynamic auto`. The sizes that the line takes are not one range of {name} "
        f"({', '.join(map(str, taken[:3]))}, ...); the program then refuses the others",
        changes=(Change(dynamic=("auto",)),),
    )


def _refused(guards: Iterable[Guard], size: int) -> bool:
    return any(guard.first_refused((size,)) is not None for guard in guards)


def _inputs_with(
    program: ExportedProgram, summary: ProgramSummary, dim: DynamicDim, size: int
) -> tuple[str, ...]:
    """Return the example inputs, as `--input` takes them, with another size of a dimension."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    found = []
    for value in summary.inputs:
        if value.kind != "user_input" or value.shape is None or value.node not in nodes:
            continue
        shape = nodes[value.node].meta["val"].shape
        sizes = [n if isinstance(n, int) else hint_of(n) for n in shape]
        if value.name == dim.input_name:
            sizes[dim.dim] = size
        found.append(f"{value.name}={value.dtype}[{','.join(map(str, sizes))}]")
    return tuple(found)


# A number that is 1, also times a factor: `Eq(3*Max(1, s0), 3)`.
_ONE = re.compile(r"^Eq\((?:.*, 1|(\d+)\*.*, \1)\)$")
_MOST_TRIED = 12


def _related(
    guards: Sequence[Guard], declared: Mapping[str, DynamicDim], summary: ProgramSummary
) -> Iterator[Diagnostic]:
    """Report a line that takes two declared sizes only in some relation, such as one greater."""
    seen: set[tuple[str, ...]] = set()
    for guard in guards:
        if guard.is_equality or len(guard.dims) != 2 or not set(guard.dims) <= declared.keys():
            continue
        first, second = (_sizes(declared[name], summary)[:_MOST_TRIED] for name in guard.dims)
        refused = guard.first_refused_pair(first, second)
        if refused is None or guard.dims in seen:
            continue
        seen.add(guard.dims)
        sizes = " and ".join(f"{name}={n}" for name, n in zip(guard.dims, refused, strict=True))
        both = " and ".join(guard.dims)
        yield rule("FE302").diagnostic(
            labels=labels_at(guard_span(guard), f"relates {both} ({guard.expression})"),
            notes=(f"{both} were declared apart; the program refuses {sizes}",),
            fix=Fix(f"export a program for each relation of {both}, with example inputs for which it holds"),
        )


def _unequal(guard: Guard, declared: Mapping[str, DynamicDim]) -> Iterator[Diagnostic]:
    names = sorted(name for name in guard.dims if name in declared)
    ranges = {(declared[name].min, declared[name].max) for name in names}
    if guard.is_equality and len(names) == 2 and len(ranges) == 2:
        both = " and ".join(f"{name} as {_range(declared[name])}" for name in names)
        yield rule("FE304").diagnostic(
            labels=labels_at(guard_span(guard), f"needs {' and '.join(names)} to be equal"),
            notes=(f"declared: {both}",),
            fix=_same_range(names, declared),
        )


def _same_range(names: Sequence[str], declared: Mapping[str, DynamicDim]) -> Fix:
    """Return what declares the sizes that all ranges have."""
    low = max((n for name in names if (n := declared[name].min) is not None), default="")
    high = min((n for name in names if (n := declared[name].max) is not None), default="")
    specs = tuple(f"{name}={low}..{high}" for name in names)
    options = " ".join(f"--dynamic {spec}" for spec in specs)
    message = f"declare the same range for {' and '.join(names)}: `{options}`"
    return Fix(message, changes=(Change(dynamic=specs),))


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
