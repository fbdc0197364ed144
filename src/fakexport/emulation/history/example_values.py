"""During a call on fake tensors, compute each value that code reads, starting from the example inputs.

Expensive operators are not run; their results are random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fakexport._torch.costs.operator_flops import call_products
from fakexport._torch.emulation.fake_tensors import FakeTensor, FakeTensorMode
from fakexport._torch.operators.operator_effects import Effects

from .masked_shapes import has_mask
from .provenance import Provenance
from .recording import Recording, recording
from .records import Args, Kwargs, Operation, Output, Run, TensorRecord, Unknown, leaves
from .references import Inputs, record_of, set_record
from .replay import Replay

# Limits in floating point operations. Reading or writing one element counts as `_OF_ELEMENT` operations.
_MOST_OF_CALL = 5e9
_MOST_OF_OPERATOR = 5e8
_LITTLE = 1e7
_OF_ELEMENT = 30
_LARGEST_BYTES = 2**30
_WEIGHT_SCALE = 0.02


class ExampleRecording(Recording):
    """A recording in which expensive operators return random numbers with mean 0 and standard deviation 1.

    Args:
        on_read: Called with each number, list, array or data-dependent result that code reads.
    """

    def __init__(self, mode: FakeTensorMode, on_read: Callable[[Any], None]) -> None:
        super().__init__(mode)
        self._replay = Replay(_LARGEST_BYTES)
        self._on_read, self._spent = on_read, 0.0

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the value for `.numpy()` and `.tolist()`."""
        value = super().read(tensor)
        self._on_read(value)
        return value

    def _result(self, run: Run, operator: Any, args: Args, kwargs: Kwargs, effects: Effects) -> Any:
        result = super()._result(run, operator, args, kwargs, effects)
        if has_mask(operator, args):
            self._on_read(result)
        return result

    def _answer(self, operator: Any, args: Args, kwargs: Kwargs) -> Any:
        result = super()._answer(operator, args, kwargs)
        self._on_read(result)
        return result

    def _note(
        self, operator: Any, inputs: Inputs, effects: Effects, result: Any, args: Any, kwargs: Any
    ) -> None:
        made = [leaf for leaf in leaves(result) if isinstance(leaf, FakeTensor)]
        is_computed = not effects.writes and effects.aliased is None and not effects.is_lift
        if is_computed and self._is_costly(operator, made, args, kwargs, result):
            for tensor in made:
                set_record(tensor, _ordinary(tensor, 1.0))
        else:
            super()._note(operator, inputs, effects, result, args, kwargs)

    def _is_costly(
        self, operator: Any, made: Sequence[torch.Tensor], args: Any, kwargs: Any, result: Any
    ) -> bool:
        taken = [leaf for leaf in leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]
        cost = float(_OF_ELEMENT * sum(tensor.numel() for tensor in (*made, *taken)))
        with self.paused():
            products = call_products(self.mode, operator, args, kwargs, result) if len(taken) > 1 else ()
        cost += sum(float(product.flops) for product in products)
        if cost > _MOST_OF_OPERATOR or (cost > _LITTLE and self._spent + cost > _MOST_OF_CALL):
            return True
        self._spent += cost
        return False


@contextmanager
def example_recording(
    mode: FakeTensorMode, tensors: Iterable[torch.Tensor], on_read: Callable[[Any], None]
) -> Iterator[None]:
    """Enter a context in which code that reads values gets values computed from the example inputs.

    Args:
        tensors: Weights and inputs. Floating point tensors whose value is unknown get random values within
            the block.
    """
    origins = Provenance({})
    records = []
    for tensor in tensors:
        if isinstance(tensor, FakeTensor) and _lacks_value(tensor, origins):
            records.append((tensor, record_of(tensor)))
            set_record(tensor, _ordinary(tensor, _WEIGHT_SCALE if tensor.requires_grad else 1.0))
    try:
        with recording(mode, recorder=ExampleRecording(mode, on_read)):
            yield
    finally:
        for tensor, record in records:
            set_record(tensor, record)


def _lacks_value(tensor: torch.Tensor, origins: Provenance) -> bool:
    found = origins.dependence_of(tensor)
    return found is not None and found.kind in ("unknown", "uninitialised")


def _ordinary(tensor: torch.Tensor, scale: float) -> TensorRecord:
    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        return TensorRecord(Unknown("a result that is too expensive to compute"))
    args = (list(tensor.shape), list(tensor.stride()), tensor.dtype, scale)
    return TensorRecord(Output(Operation(_normal, args, {}), 0))


def _normal(size: list[int], stride: list[int], dtype: torch.dtype, scale: float) -> torch.Tensor:
    drawn = torch.empty_strided(size, stride)
    return drawn.normal_(0, scale, generator=torch.Generator().manual_seed(0)).to(dtype)
