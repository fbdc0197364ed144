"""What comes of a case: with torch.export alone, and with fakexport."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fakexport as fe

from .case import Case

__all__ = ["EQUAL", "of_fakexport", "of_stock"]

EQUAL = "equal to eager mode"


def of_stock(case: Case) -> str:
    """What the program of torch.export does in the calls, in words."""
    dims = {0: torch.export.Dim.DYNAMIC} if case.varies else {}
    shapes = tuple(None if value is None else dims for value in case.example)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        random.seed(0)
        try:
            program = torch.export.export(case.kind(), _fresh(case.example), dynamic_shapes=shapes)
        except Exception as error:
            return f"refused: {type(error).__name__}"
    return _compared(case, program.module())


def of_fakexport(case: Case) -> str:
    """The codes of what is reported, or what the program does in the calls."""
    sizes = ["x.0"] if case.varies else []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = fe.check(lambda: (case.kind(), _fresh(case.example)), dynamic_shapes=sizes)
        found = [f"{each.code}, {each.severity}" for each in report.diagnostics]
        if report.verdicts[0].is_exportable is False:
            return f"refused: {'; '.join(found)}"
        random.seed(0)
        program = fe.export(lambda: (case.kind(), _fresh(case.example)), dynamic_shapes=sizes)
        bound = fe.bind(program, case.kind().state_dict())
    told = f"reported: {'; '.join(found)}" if found else ""
    compared = _compared(case, bound.module())
    return compared if compared == EQUAL and not told else f"{told}; {compared}".removeprefix("; ")


def _compared(case: Case, program: Callable[..., Any]) -> str:
    model = case.kind()
    differing, overwritten, refused = [], [], []
    with torch.no_grad():
        for number, inputs in enumerate(case.calls, start=1):
            given = _fresh(inputs)
            expected = _seeded(model, _fresh(inputs), number)
            try:
                result = _seeded(program, given, number)
            except Exception:
                refused.append(number)
                continue
            if not _is_equal(result, expected):
                differing.append(number)
            if not all(a is None or torch.equal(a, b) for a, b in zip(given, inputs, strict=True)):  # type: ignore[arg-type]
                overwritten.append(number)
    parts = [
        *([f"another value in {_calls(differing, case)}"] if differing else []),
        *([f"its input is overwritten in {_calls(overwritten, case)}"] if overwritten else []),
        *([f"an error in {_calls(refused, case)}"] if refused else []),
    ]
    return ", ".join(parts) or EQUAL


def _calls(numbers: list[int], case: Case) -> str:
    if len(numbers) == len(case.calls):
        return "each call"
    return f"call {' and '.join(map(str, numbers))} of {len(case.calls)}"


def _is_equal(result: Tensor, expected: Tensor) -> bool:
    try:
        return result.dtype == expected.dtype and torch.equal(result, expected)
    except RuntimeError:
        return False  # A tensor without values, which a trace left.


def _seeded(function: Callable[..., Any], inputs: tuple[Any, ...], seed: int) -> Any:
    """The result, with generators that have the same state for a call of the program and of the model."""
    random.seed(seed)
    torch.manual_seed(seed)
    return function(*inputs)


def _fresh(inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if value is None else value.clone() for value in inputs)
