"""Compare planned memory peaks of operators with real runs: `python -m benchmarks.operator_peaks`.

The operators and their float32 samples are those of torch's own tests, with larger sizes. The command prints
each operator whose plan is wrong without a warning, because `planning/memory/temporaries.py` has no rule for
it.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.export import export
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from benchmarks.cpu_peaks import TOLERANCE
from fakexport.planning.memory.liveness import liveness, sizes_at

_SIZES = {"S": 24, "M": 40, "L": 60}
_SAMPLES = 3
_SMALLEST = 96
"""Smaller differences in bytes are ignored: they come from tensors that represent numbers."""


@dataclass(frozen=True)
class Sample:
    """One call of an operator: planned and measured bytes, and whether the plan warns about it."""

    operator: str
    planned: int
    measured: int
    is_named: bool

    @property
    def is_wrong(self) -> bool:
        """Whether the plan is wrong and does not warn."""
        difference = abs(self.planned - self.measured)
        return difference > max(TOLERANCE * self.measured, _SMALLEST) and not self.is_named


class _Call(nn.Module):
    def __init__(self, function: Any, leaves: Sequence[Any], spec: Any) -> None:
        super().__init__()
        self.function, self.leaves, self.spec = function, leaves, spec

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.spec)
        result = self.function(*args, **kwargs)
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def samples(names: Sequence[str] = ()) -> Iterator[Sample]:
    """Yield the samples that export and run, of all operators or of those with the given names."""
    from torch.testing._internal import common_methods_invocations as database  # Importing it takes seconds.
    from torch.testing._internal.opinfo import core

    with ExitStack() as enlarged:
        for module in (database, core):
            sizes = {name: size for name, size in _SIZES.items() if hasattr(module, name)}
            enlarged.enter_context(mock.patch.multiple(module, **sizes))
        for operator in database.op_db:
            if torch.float32 in operator.dtypes and (not names or operator.name in names):
                yield from _of(operator)


def _of(operator: Any) -> Iterator[Sample]:
    try:
        given = list(itertools.islice(operator.sample_inputs("cpu", torch.float32), _SAMPLES))
    except Exception:  # The samples need a library that is not installed.
        return
    for sample in given:
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        tensors = tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor))
        try:
            found = _measured(operator.full_name, _Call(operator.op, leaves, spec), tensors)
        except Exception:  # The operator needs tensor values or a different device.
            continue
        yield found


def _measured(name: str, module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> Sample:
    from tests.measured_memory import measured_peak

    program = export(module, tensors)
    found, run = liveness(program), program.module()
    planned = sizes_at(found, dict.fromkeys(found.symbols, 5)).peak("cpu").run_bytes
    is_named = bool(found.unmodeled or found.left_out or found.symbols)
    return Sample(name, planned, measured_peak(lambda: run(*tensors)), is_named)


def main() -> int:
    """Print the operators whose plan is wrong, and the counts."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = list(samples(sys.argv[1:]))
    wrong = [sample for sample in found if sample.is_wrong]
    for sample in wrong:
        print(f"{sample.operator}: planned {sample.planned:,}, measured {sample.measured:,}")
    names = {sample.operator for sample in found}
    named = {sample.operator for sample in found if sample.is_named}
    print(
        f"{len(names)} operators, {len(named)} named as not modeled, {len({s.operator for s in wrong})} wrong"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
