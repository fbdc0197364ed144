"""Run one operator with one dtype in one way on fake `cpu` and on fake `cuda:0` tensors, and compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo

from fakexport._torch.emulation.fake_tensors import new_fake_mode
from fakexport.emulation.devices import emulate

from .samples import Call, is_placed, samples_of, stand_in
from .ways import WAYS

__all__ = ["Outcome", "compare"]

CPU, DEVICE = torch.device("cpu"), torch.device("cuda:0")


@dataclass
class Outcome:
    """Results for the samples of one operator, dtype and step.

    Args:
        operator: Name in torch's operator database.
        dtype: Name of the dtype without `torch.`.
        step: `direct`, `forward`, `backward` or `export`.
        on_cpu: Number of samples that work with fake CPU tensors.
        same: Number of these samples with the same result on the emulated device.
        problems: Text of a problem -> number of samples with this problem.
    """

    operator: str
    dtype: str
    step: str
    on_cpu: int = 0
    same: int = 0
    problems: Counter[str] = field(default_factory=Counter)


def compare(op: OpInfo, dtype: torch.dtype, way: str, samples: str, target: str | None) -> list[Outcome]:
    """Run all samples on both devices, and return an outcome per step.

    Args:
        way: A key of `WAYS`.
        samples: `first` or `all`.
        target: The topology to emulate; None runs stock torch.
    """
    outcomes: dict[str, Outcome] = {}
    for call in samples_of(op, dtype, way == "autograd", samples):
        device = DEVICE if is_placed(call) else CPU
        expected = dict(_steps(op, call, way, CPU, nullcontext()))
        emulation = nullcontext() if target is None else emulate(target)
        found = dict(_steps(op, call, way, DEVICE, emulation))
        for step, reference in expected.items():
            if isinstance(reference, Exception):
                continue
            name = str(dtype).removeprefix("torch.")
            outcome = outcomes.setdefault(step, Outcome(op.full_name, name, step))
            outcome.on_cpu += 1
            problem = _problem(device, reference, found.get(step) or found[next(reversed(found))])
            if problem is None:
                outcome.same += 1
            else:
                outcome.problems[problem] += 1
    return list(outcomes.values())


def _steps(
    op: OpInfo, call: Call, way: str, device: torch.device, emulation: AbstractContextManager[object]
) -> Iterator[tuple[str, list[dict[str, str]] | Exception]]:
    """Yield the outputs of each step, or the error of the first step that raises."""
    run, names = WAYS[way]
    steps = iter(names)
    with emulation:
        mode = new_fake_mode()
        inputs = stand_in(call, mode, device)
        try:
            for outputs in run(op, inputs, mode):
                yield next(steps), [_described(leaf) for leaf in outputs]
        except Exception as error:  # any error of an operator is a result
            yield next(steps), error


def _problem(
    device: torch.device, reference: list[dict[str, str]], found: list[dict[str, str]] | Exception
) -> str | None:
    if isinstance(found, Exception):
        line = next(iter(str(found).strip().splitlines()), "")
        return f"{type(found).__name__}: {line[:160]}"
    if len(reference) != len(found):
        return "another number of outputs"
    for before, after in zip(reference, found, strict=True):
        expected = before | {"device": str(device)} if before.get("device") == str(CPU) else before
        for aspect, value in expected.items():
            if after.get(aspect) != value:
                return f"{aspect} {after.get(aspect)}, expected {value}"
    return None


def _described(leaf: Any) -> dict[str, str]:
    if not isinstance(leaf, torch.Tensor):
        return {"value": f"{type(leaf).__name__} {leaf}"}
    placed = {"shape": _numbers(leaf.shape), "dtype": str(leaf.dtype), "layout": str(leaf.layout)}
    if leaf.layout is torch.strided:
        placed["stride"] = _numbers(leaf.stride())
    return placed | {"device": str(leaf.device)}


def _numbers(values: Any) -> str:
    return f"({', '.join(map(str, values))})"
