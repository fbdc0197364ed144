"""Run custom operators on synthetic inputs, to compare them with their declarations: FE402, FE403."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fakexport._torch.kernels import fbgemm_products, fp8_products, mxfp4_products
from fakexport._torch.operators.operator_schema import is_python_operator
from fakexport._torch.operators.packaged_operators import TORCH_NAMESPACES
from fakexport._torch.pytree import tree_leaves, tree_map
from fakexport._torch.tracing.symbolic_numbers import hint_of
from fakexport.error import type_and_line
from fakexport.exporting.program import Visit, operator_name
from fakexport.report.diagnose.labels import finding
from fakexport.rules.diagnostics import Diagnostic

# These operators are not compared: torchvision's kernels are maintained with torch, torch cannot compare fp8
# tensors, and synthetic inputs have no valid offsets for the MXFP4 operator.
_NOT_CUSTOM = TORCH_NAMESPACES | {
    "torchvision",
    fbgemm_products.NAMESPACE,
    fp8_products.NAMESPACE,
    mxfp4_products.NAMESPACE,
}
_MUTATED = "not defined as mutable but was mutated"


@dataclass(frozen=True)
class ComparedOperators:
    """A diagnostic for each operator that differs from its declaration, and notes on those not compared."""

    diagnostics: tuple[Diagnostic, ...]
    notes: tuple[str, ...]


def compare_custom_operators(visits: Iterable[Visit]) -> ComparedOperators:
    """Run each Python custom operator once on synthetic CPU data, and compare its real and fake kernels.

    Only operators that `torch.library.custom_op` defines are run, because their kernels can raise an error
    but not crash. The arguments have the metadata of the operator's first call. Operators whose arguments
    exceed `_LARGEST_INPUT_BYTES` are skipped.

    Reports:
        FE402 if the fake kernel returns a different shape, dtype or layout than the real kernel, FE403 if the
        operator modifies an input that its schema does not declare as mutable.
    """
    diagnostics: list[Diagnostic] = []
    notes: list[str] = []
    seen: set[str] = set()
    for visit in visits:
        name = _custom_operator(visit)
        if name is None or name in seen:
            continue
        seen.add(name)
        try:
            diagnostics += _compared(name, visit)
        except NotComparable as error:
            notes.append(f"the fake kernel of {name} was not compared with its real kernel: {error}")
    return ComparedOperators(tuple(diagnostics), tuple(notes))


def _custom_operator(visit: Visit) -> str | None:
    """Return the qualified name of an operator, `acme::scale`, or None if torch defines the operator."""
    operator = operator_name(visit.node)
    namespace, _, name = operator.partition(".")
    is_called = visit.node.op == "call_function" and hasattr(visit.node.target, "overloadpacket")
    return f"{namespace}::{name.partition('.')[0]}" if is_called and namespace not in _NOT_CUSTOM else None


def _compared(name: str, visit: Visit) -> Iterator[Diagnostic]:
    if not is_python_operator(name):
        raise NotComparable(
            "operators that are not defined with `torch.library.custom_op`, such as C++ "
            "operators, are not run on synthetic data because they could crash"
        )
    args, kwargs = made_up_inputs(
        tree_map(
            lambda leaf: leaf.meta.get("val") if isinstance(leaf, Node) else leaf,
            (visit.node.args, visit.node.kwargs),
        )
    )
    operator: Any = visit.node.target
    path = visit.module_path
    tests = ("test_schema", "test_faketensor")
    found = torch.library.opcheck(operator, args, kwargs, test_utils=tests, raise_exception=False)
    mutated, mismatch = found["test_schema"], found["test_faketensor"]
    if _MUTATED in str(mutated):
        yield finding("mutation", visit.span, module_path=path, name=name, error=str(mutated))
    elif mutated != "SUCCESS":
        raise NotComparable(f"on synthetic data, the operator raised {type_and_line(mutated)}")
    if type(mismatch).__name__ == "MetadataMismatchError":
        yield finding("fake_kernel", visit.span, module_path=path, name=name, error=str(mismatch))


_LARGEST_INPUT_BYTES = 64 * 2**20


class NotComparable(Exception):
    """Raised if an operator cannot be run on synthetic inputs. The message is a clause with the reason."""


def made_up_inputs(described: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return real CPU tensors with the metadata of fake arguments, or raise a `NotComparable`."""
    leaves = tree_leaves(described)
    sizes = [
        number
        for leaf in leaves
        if isinstance(leaf, torch.Tensor)
        for number in (*leaf.shape, *leaf.stride())
    ]
    numbers = [leaf for leaf in leaves if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool))]
    if any(_number(number) is None for number in (*sizes, *numbers)):
        raise NotComparable("the size of an input depends on data")
    total = sum(
        math.prod(_number(n) for n in leaf.shape) * leaf.itemsize
        for leaf in leaves
        if isinstance(leaf, torch.Tensor)
    )
    if total > _LARGEST_INPUT_BYTES:
        raise NotComparable(f"its inputs exceed {_LARGEST_INPUT_BYTES // 2**20} MiB")
    generator = torch.Generator().manual_seed(0)
    real: tuple[Any, Any] = tree_map(
        lambda leaf: _real(leaf, generator) if isinstance(leaf, torch.Tensor) else _on_cpu(_number(leaf)),
        described,
    )
    return real


def _number(value: Any) -> Any:
    """Return a symbolic number's example value, or None if it depends on data; return other values as is."""
    return hint_of(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _real(fake: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return random floats, which reveal a write, or integer zeros, which are valid indices."""
    sizes, strides = ([_number(n) for n in numbers] for numbers in (fake.shape, fake.stride()))
    if not fake.is_floating_point():
        return torch.zeros(sizes, dtype=fake.dtype)
    drawn = torch.randn(sizes, generator=generator).to(fake.dtype)
    return drawn if 0 in strides else torch.empty_strided(sizes, strides, dtype=fake.dtype).copy_(drawn)
