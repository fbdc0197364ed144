"""Operators from outside torch that are not what they say: FE402, FE403."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch.operator_schema import is_python_operator
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.symbolic_numbers import hint_of
from fakexport.diagnose.labels import labels_at
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.program.operator_name import operator_name
from fakexport.program.walk import Visit, walk
from fakexport.rules import rule

__all__ = ["diagnose_custom_operators"]

LARGEST_INPUT_BYTES = 64 * 2**20
_MUTATED = "not defined as mutable but was mutated"


def diagnose_custom_operators(program: ExportedProgram) -> Iterator[Diagnostic]:
    """Runs each operator that was made in Python once, on made-up data on the CPU, and compares.

    Only operators of `torch.library.custom_op`, whose kernels can raise but not crash, and only with inputs
    of at most `LARGEST_INPUT_BYTES`. Each operator is run as its first node calls it. One that has no kernel
    for the CPU, or does not take the data, cannot be compared and gives nothing.

    Reports:
        FE402 where the fake kernel gives another shape, dtype or layout than the real one, FE403 where an
        input is changed that the schema does not say is.
    """
    seen: set[str] = set()
    for visit in walk(program):
        name = _custom_operator(visit)
        if name is not None and name not in seen:
            seen.add(name)
            yield from _diagnosed(name, visit)


def _custom_operator(visit: Visit) -> str | None:
    """`acme::scale`, if an operator of that name was made in Python."""
    namespace, _, name = operator_name(visit.node).partition(".")
    qualified = f"{namespace}::{name.partition('.')[0]}"
    return qualified if is_python_operator(qualified) else None


def _diagnosed(name: str, visit: Visit) -> Iterator[Diagnostic]:
    called = _made_up(visit)
    if called is None:
        return
    args, kwargs = called
    tests = ("test_schema", "test_faketensor")
    operator: Any = visit.node.target
    found = torch.library.opcheck(operator, args, kwargs, test_utils=tests, raise_exception=False)
    mutated, mismatch = found["test_schema"], found["test_faketensor"]
    if _MUTATED in str(mutated):
        yield rule("FE403").diagnostic(
            labels=labels_at(visit.span, f"{name} changes an input"),
            notes=(str(mutated),),
            fix=Fix("declare the argument in `mutates_args`, or work on a copy of it"),
            module_path=visit.module_path or None,
        )
    if type(mismatch).__name__ == "MetadataMismatchError":
        yield rule("FE402").diagnostic(
            labels=labels_at(visit.span, f"the kernels of {name} disagree"),
            notes=(str(mismatch),),
            fix=Fix("make the fake kernel give what the real one gives"),
            module_path=visit.module_path or None,
        )


def _made_up(visit: Visit) -> tuple[Any, Any] | None:
    """Real arguments like those of the node, or None where there can be none or they are too large."""
    described = tree_map(
        lambda leaf: leaf.meta.get("val") if isinstance(leaf, Node) else leaf,
        (visit.node.args, visit.node.kwargs),
    )
    leaves = tree_leaves(described)
    sizes = [
        number
        for leaf in leaves
        if isinstance(leaf, torch.Tensor)
        for number in (*leaf.shape, *leaf.stride())
    ]
    numbers = [leaf for leaf in leaves if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool))]
    if any(_number(number) is None for number in (*sizes, *numbers)):
        return None
    total = sum(
        math.prod(_number(n) for n in leaf.shape) * leaf.itemsize
        for leaf in leaves
        if isinstance(leaf, torch.Tensor)
    )
    if total > LARGEST_INPUT_BYTES:
        return None
    generator = torch.Generator().manual_seed(0)
    real: tuple[Any, Any] = tree_map(
        lambda leaf: _real(leaf, generator) if isinstance(leaf, torch.Tensor) else _on_cpu(_number(leaf)),
        described,
    )
    return real


def _number(value: Any) -> Any:
    """A symbolic number's value in the example, None where only data tell it; all else as it is."""
    return hint_of(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _real(fake: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Drawn numbers, so that a change is seen; of integers zeros, which are indices of every table."""
    sizes, strides = ([_number(n) for n in numbers] for numbers in (fake.shape, fake.stride()))
    if not fake.is_floating_point():
        return torch.zeros(sizes, dtype=fake.dtype)
    drawn = torch.randn(sizes, generator=generator).to(fake.dtype)
    return drawn if 0 in strides else torch.empty_strided(sizes, strides, dtype=fake.dtype).copy_(drawn)
