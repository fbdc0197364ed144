"""Export a case with torch.export and with fakexport, and compare the programs with eager mode."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fakexport as fe

from .case import Case

__all__ = ["EQUAL", "FAILED", "of_fakexport", "of_stock", "same_as_eager"]

EQUAL = "matches eager mode"
FAILED = "export fails: "


def of_stock(case: Case) -> str:
    """Describe the calls of the program that torch.export makes."""
    dims = {0: torch.export.Dim.DYNAMIC} if case.varies else {}
    shapes = tuple(None if value is None else dims for value in case.example)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        random.seed(0)
        try:
            program = torch.export.export(case.kind(), _fresh(case.example), dynamic_shapes=shapes)
        except Exception as error:
            return f"{FAILED}{type(error).__name__}"
    return _compared(case, program.module())


def of_fakexport(case: Case) -> str:
    """List the diagnostics of fakexport, and describe the calls of its program."""
    sizes = ["x.0"] if case.varies else []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = fe.check(lambda: (case.kind(), _fresh(case.example)), dynamic_shapes=sizes)
        found = list(dict.fromkeys(f"{each.code} {each.severity}" for each in report.diagnostics))
        if report.verdicts[0].is_exportable is False:
            return f"{FAILED}{', '.join(found)}"
        random.seed(0)
        program = fe.export(lambda: (case.kind(), _fresh(case.example)), dynamic_shapes=sizes)
        bound = fe.bind(program, case.kind().state_dict())
    reported = ", ".join(found)
    compared = _compared(case, bound.module())
    return f"{reported}; {compared}".removeprefix("; ")


def _compared(case: Case, program: Callable[..., Any]) -> str:
    model = case.kind()
    differing, overwritten, failing = [], [], []
    with torch.no_grad():
        for number, inputs in enumerate(case.calls, start=1):
            given = _fresh(inputs)
            expected = _seeded(model, _fresh(inputs), number)
            try:
                result = _seeded(program, given, number)
            except Exception:
                failing.append(number)
                continue
            if not _is_equal(result, expected):
                differing.append(number)
            if not all(a is None or torch.equal(a, b) for a, b in zip(given, inputs, strict=True)):  # type: ignore[arg-type]
                overwritten.append(number)
    parts = [
        *([f"wrong result in {_calls(differing, case)}"] if differing else []),
        *([f"overwrites its input in {_calls(overwritten, case)}"] if overwritten else []),
        *([f"raises an error in {_calls(failing, case)}"] if failing else []),
    ]
    return ", ".join(parts) or EQUAL


def same_as_eager(one: Case, other: Case) -> bool:
    """Whether two models return equal tensors in eager mode, in the calls of the second."""
    models = one.kind(), other.kind()
    with torch.no_grad():
        return all(_is_equal(*(model(*_fresh(inputs)) for model in models)) for inputs in other.calls)


def _calls(numbers: list[int], case: Case) -> str:
    if len(numbers) == len(case.calls):
        return "every call"
    return f"call{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))} of {len(case.calls)}"


def _is_equal(result: Tensor, expected: Tensor) -> bool:
    try:
        return result.dtype == expected.dtype and torch.equal(result, expected)
    except RuntimeError:
        return False  # A fake tensor that the trace left in the model.


def _seeded(function: Callable[..., Any], inputs: tuple[Any, ...], seed: int) -> Any:
    """Call with seeded generators, so that the program and the model draw the same numbers."""
    random.seed(seed)
    torch.manual_seed(seed)
    return function(*inputs)


def _fresh(inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if value is None else value.clone() for value in inputs)
