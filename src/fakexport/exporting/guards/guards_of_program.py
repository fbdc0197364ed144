"""Collect the conditions on a program's inputs that are not visible in its input shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, cast

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, CustomObjArgument, InputKind

from fakexport._torch.tracing.program_assembly import guards_code
from fakexport._torch.tracing.symbolic_numbers import expression_of, expression_python
from fakexport.exporting.interface import (
    Condition,
    Expression,
    InputLeaf,
    Operation,
    Question,
    input_leaves,
    read_condition,
    read_expression,
)


def conditions_of(program: ExportedProgram) -> tuple[Condition, ...]:
    """Return the conditions on the inputs of a program, each once, in the order of the trace.

    The conditions are torch's guards (branches, divisibility, relations between sizes), and formulas for
    input sizes that depend on several other sizes. Ranges of sizes are not included, nor sizes that are a
    symbol or linear in one symbol: they are part of the input shapes, which `deploy.Signature` checks.

    Raises:
        UnreadableCondition: fakexport cannot represent a condition.
    """
    leaves = leaves_of(program)
    return tuple(
        dict.fromkeys((*conditions_of_guards(guards_code(program), leaves), *_formulas(program, leaves)))
    )


def conditions_of_guards(guards: Iterable[str], leaves: Sequence[InputLeaf]) -> tuple[Condition, ...]:
    """Parse guards from the text that torch prints. Return each condition once.

    Conditions that always hold are left out.

    Raises:
        UnreadableCondition: fakexport cannot represent a guard.
    """
    read = (read_condition(guard, leaves) for guard in guards)
    return tuple(dict.fromkeys(condition for condition in read if condition is not None))


def leaves_of(program: ExportedProgram) -> tuple[InputLeaf, ...]:
    """Return the input leaves that a caller of the program passes."""
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    found = [
        (spec.arg.name, *_rank_and_constant(spec.arg, values.get(spec.arg.name)))
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    return input_leaves(program.call_spec.in_spec, argument_names_of(program), found)


def argument_names_of(program: ExportedProgram) -> Sequence[str]:
    """Return the names of the arguments of `forward`, or an empty sequence if the program lacks them."""
    root = next((entry.signature for entry in program.module_call_graph if entry.fqn == ""), None)
    return (root and root.forward_arg_names) or ()


def _rank_and_constant(argument: Any, value: Any) -> tuple[int | None, Any]:
    if isinstance(argument, ConstantArgument):
        return None, argument.value
    if isinstance(argument, CustomObjArgument) and isinstance(argument.fake_val, Enum):
        return None, argument.fake_val
    return (value.dim() if isinstance(value, torch.Tensor) else None), ...


def _formulas(program: ExportedProgram, leaves: Sequence[InputLeaf]) -> Iterator[Condition]:
    """Yield a condition such as `y.shape[0] == x.shape[0] * x.shape[1]` for each size that is not linear."""
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    sizes: list[tuple[Question, Any]] = []
    for leaf in leaves:
        value = values.get(leaf.name)
        if isinstance(value, torch.SymInt):
            sizes.append((Question(leaf.name, "value"), expression_of(value)))
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(cast("tuple[int | torch.SymInt, ...]", value.shape)):
                if isinstance(size, torch.SymInt):
                    sizes.append((Question(leaf.name, "size", dim), expression_of(size)))
    symbols = _solved(sizes)
    for question, expression in sizes:
        names = {symbol.name for symbol in expression.free_symbols}
        if names and names <= symbols.keys() and (len(names) > 1 or linear_size(expression) is None):
            right = read_expression(expression_python(expression), leaves, symbols)
            yield Condition(Operation("==", (question, right)))


def _solved(sizes: Sequence[tuple[Question, Any]]) -> dict[str, Expression]:
    """Express each symbol in terms of an input size that is equal to the symbol or linear in it."""
    found: dict[str, Expression] = {}
    for question, expression in sizes:
        if isinstance(expression, sympy.Symbol):
            found.setdefault(expression.name, question)
    for question, expression in sizes:
        if (linear := linear_size(expression)) is not None:
            name, times, plus = linear
            rest: Expression = question if plus == 0 else Operation("-", (question, plus))
            found.setdefault(name, rest if times == 1 else Operation("//", (rest, times)))
    return found


def linear_size(expression: Any) -> tuple[str, int, int] | None:
    """Return the symbol, factor and offset of a linear size such as `2*s17 + 1`, or None for other sizes."""
    symbols = list(expression.free_symbols)
    if len(symbols) != 1:
        return None
    times, plus = expression.diff(symbols[0]), expression.subs(symbols[0], 0)
    if times.is_Integer and plus.is_Integer and times > 0:
        return symbols[0].name, int(times), int(plus)
    return None
