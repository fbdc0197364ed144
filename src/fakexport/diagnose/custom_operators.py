"""Detect custom operators that do not match their declaration: FE402, FE403."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fakexport._torch import fbgemm_products, fp8_products, mxfp4_products
from fakexport._torch.operator_registry import TORCH_NAMESPACES
from fakexport._torch.operator_schema import is_python_operator
from fakexport._torch.pytree import tree_map
from fakexport.diagnose.labels import labels_at
from fakexport.diagnose.made_up_inputs import NotComparable, made_up_inputs
from fakexport.diagnostics import Diagnostic, Fix
from fakexport.error import type_and_line
from fakexport.program import Visit, operator_name, walk
from fakexport.rules import rule

# The kernels of torchvision come from torch's own project, torch cannot compare tensors in fp8, and no
# made-up input has the offsets that the operator for MXFP4 takes.
_NOT_CUSTOM = TORCH_NAMESPACES | {
    "torchvision",
    fbgemm_products.NAMESPACE,
    fp8_products.NAMESPACE,
    mxfp4_products.NAMESPACE,
}
_MUTATED = "not defined as mutable but was mutated"


@dataclass(frozen=True)
class ComparedOperators:
    """The result of running the custom operators of a program.

    Args:
        diagnostics: Diagnostics of those that do not match their declaration.
        notes: A sentence for each that could not be compared.
    """

    diagnostics: tuple[Diagnostic, ...]
    notes: tuple[str, ...]


def compare_custom_operators(program: ExportedProgram) -> ComparedOperators:
    """Run each custom operator of Python once on synthetic data on the CPU, and compare its kernels.

    Only operators of `torch.library.custom_op`, whose kernels can raise but not crash, and only with inputs
    of at most `LARGEST_INPUT_BYTES`. Each operator is run as its first node calls it.

    Reports:
        FE402 where the fake kernel returns another shape, dtype or layout than the real one, FE403 where an
        input is changed that the schema does not say is.
    """
    diagnostics: list[Diagnostic] = []
    notes: list[str] = []
    seen: set[str] = set()
    for visit in walk(program):
        name = _custom_operator(visit)
        if name is None or name in seen:
            continue
        seen.add(name)
        try:
            diagnostics += _compared(name, visit)
        except NotComparable as error:
            notes.append(f"the fake kernel of {name} was not compared with the real one: {error}")
    return ComparedOperators(tuple(diagnostics), tuple(notes))


def _custom_operator(visit: Visit) -> str | None:
    """Return `acme::scale`, if an operator outside of torch has that name."""
    operator = operator_name(visit.node)
    namespace, _, name = operator.partition(".")
    is_called = visit.node.op == "call_function" and hasattr(visit.node.target, "overloadpacket")
    return f"{namespace}::{name.partition('.')[0]}" if is_called and namespace not in _NOT_CUSTOM else None


def _compared(name: str, visit: Visit) -> Iterator[Diagnostic]:
    if not is_python_operator(name):
        raise NotComparable(
            "operators not defined with `torch.library.custom_op`, such as those in C++, are not run on "
            "synthetic data: they could crash"
        )
    args, kwargs = made_up_inputs(
        tree_map(
            lambda leaf: leaf.meta.get("val") if isinstance(leaf, Node) else leaf,
            (visit.node.args, visit.node.kwargs),
        )
    )
    operator: Any = visit.node.target
    tests = ("test_schema", "test_faketensor")
    found = torch.library.opcheck(operator, args, kwargs, test_utils=tests, raise_exception=False)
    mutated, mismatch = found["test_schema"], found["test_faketensor"]
    if _MUTATED in str(mutated):
        yield rule("FE403").diagnostic(
            labels=labels_at(visit.span, f"{name} changes an input"),
            notes=(str(mutated),),
            fix=Fix("declare the argument in `mutates_args`, or work on a copy of it"),
            module_path=visit.module_path or None,
        )
    elif mutated != "SUCCESS":
        raise NotComparable(f"on synthetic data it raised {type_and_line(mutated)}")
    if type(mismatch).__name__ == "MetadataMismatchError":
        yield rule("FE402").diagnostic(
            labels=labels_at(visit.span, f"the kernels of {name} disagree"),
            notes=(str(mismatch),),
            fix=Fix("make the fake kernel return what the real kernel returns"),
            module_path=visit.module_path or None,
        )
