"""A process of the benchmark: `python -m fakexport.benchmark.worker ALIVE FOLDER PART MODE`."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fakexport.devices import peak_bytes, resident_bytes
from fakexport.error import InvalidValue
from fakexport.processes import end_with_parent
from fakexport.program import plain_name
from fakexport.report import Spread
from fakexport.sources import load_operator_library

from .model import Call, Inputs, Model, Request, call_of, copied
from .modes import MODES, Mode
from .outcome import Outcome, StepFailed
from .reference import Facts, expected_outputs, first_inputs, other_inputs, write_reference


def main(arguments: Sequence[str]) -> None:
    """Do one part of a benchmark and write an `Outcome` to the folder.

    Args:
        arguments: The pipe of `end_with_parent`, the folder, the part (`reference`, `make` or `use`) and the
            mode, which is empty for `reference`.
    """
    alive, place, part, name = arguments
    end = os._exit
    end_with_parent(int(alive))
    work(Path(place), part, name)
    end(0)  # Without what the model has left: threads, and handlers that would change the exit code.


def work(folder: Path, part: str, name: str = "") -> None:
    """Do a part of a benchmark in this process."""
    warnings.simplefilter("ignore")
    request, outcome = Request.read(folder), Outcome(folder / f"{part}-{name}.json")
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    try:
        if part == "reference":
            with outcome.during("run"):
                _load_libraries(request)
                write_reference(request, folder)
                outcome.note(threads=torch.get_num_threads())
        elif part == "make":
            _make(request, MODES[name], folder, outcome)
        else:
            _use(request, MODES[name], folder, outcome)
    except StepFailed:
        pass
    outcome.complete()


def _load_libraries(request: Request) -> None:
    for library in request.libraries:
        load_operator_library(library)


def _make(request: Request, mode: Mode, folder: Path, outcome: Outcome) -> None:
    """Write the files to deploy."""
    assert mode.make is not None
    files = folder / mode.name
    files.mkdir()
    with outcome.during("make"):
        _load_libraries(request)
        model = Model.of(request)
        inputs = copied(first_inputs(folder))
        start = time.perf_counter()
        mode.make(request, model, inputs, files)
        outcome.note(make_s=time.perf_counter() - start)
        outcome.note(size_bytes=sum(path.stat().st_size for path in files.rglob("*") if path.is_file()))


def _use(request: Request, mode: Mode, folder: Path, outcome: Outcome) -> None:
    """Open and run it, and time it in turns with eager."""
    inputs, others = first_inputs(folder), other_inputs(folder)
    expected = expected_outputs(folder, 1)
    _load_libraries(request)
    before = resident_bytes()
    packages = () if mode.has_code else Facts.read(folder).packages
    with hidden(packages):
        with outcome.during("load"):
            start = time.perf_counter()
            call = mode.open(request, folder / mode.name)
            outcome.note(load_s=time.perf_counter() - start, needs_code=mode.has_code)
        with outcome.during("run"):
            own = copied(inputs)
            start = time.perf_counter()
            outputs = call(own)
            outcome.note(first_call_s=time.perf_counter() - start, memory_bytes=peak_bytes() - before)
        with outcome.during("compare"):
            agreed = agreement(expected, outputs)
            outcome.note(difference=agreed.difference, is_equal=agreed.is_equal)
        if others is not None:
            _resize(call, others, folder, outcome)
    with outcome.during("time"):
        eager = call if mode.name == "eager" else call_of(Model.of(request).module)
        own_s, eager_s = in_turns((call, eager), inputs, warmup=request.warmup, repeat=request.repeat)
        ratios = [ours / theirs for ours, theirs in zip(own_s, eager_s, strict=True)]
        outcome.note(latency_s=asdict(Spread.of(own_s)), ratio=asdict(Spread.of(ratios)))


def _resize(call: Call, others: Inputs, folder: Path, outcome: Outcome) -> None:
    """Check whether the outputs are eager's in other sizes too; a failure does not stop the rest."""
    try:
        with outcome.during("resize"):
            agreed = agreement(expected_outputs(folder, 2), call(copied(others)))
            if not agreed.is_equal:
                raise InvalidValue(f"wrong outputs, {agreed.difference:.3g} from eager's")
            outcome.note(keeps_dynamic=True)
    except StepFailed:
        outcome.note(keeps_dynamic=False)


def in_turns(
    calls: tuple[Call, Call], inputs: Inputs, *, warmup: int, repeat: int
) -> tuple[list[float], list[float]]:
    """Time two calls in turns, so that disturbances of the machine affect both alike.

    Args:
        calls: Two calls; the same call twice runs once per turn.
        inputs: Copied for each call, before its clock starts.
        warmup, repeat: Untimed and timed turns.
    Returns:
        The times of each call, in the order of the turns. In every other turn the second call comes first.
    """
    first, second = calls
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(warmup + repeat):
        for which in ((0, 1), (1, 0))[turn % 2] if first is not second else (0,):
            own = copied(inputs)
            start = time.perf_counter()
            calls[which](own)
            took = time.perf_counter() - start
            if turn >= warmup:
                seconds[which].append(took)
    return seconds[0], seconds[1] or seconds[0]


@contextmanager
def hidden(packages: Sequence[str]) -> Iterator[None]:
    """Make packages impossible to import in the block; none of them may be imported yet.

    `None` is what Python's import system takes for an absent module.
    """
    modules: dict[str, Any] = sys.modules
    absent = [name for name in packages if name not in modules]
    for name in absent:
        modules[name] = None
    try:
        yield
    finally:
        for name in absent:
            modules.pop(name, None)


class OtherOutputs(Exception):
    """The outputs cannot be compared: they differ in number, dtype or shape."""


@dataclass(frozen=True)
class Agreement:
    """How far outputs are from eager's.

    Args:
        difference: The largest difference of a number; infinite where only one of the two is NaN or infinite.
        is_equal: No tensor differs by more than the square root of its dtype's precision, relative to its
            largest number (float32: 3e-4; bfloat16: 0.09); whole numbers and booleans do not differ at all.
            The bound allows for different kernels in a different order, and is far below the effect of a
            wrong constant or shape.
    """

    difference: float
    is_equal: bool


def agreement(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Agreement:
    """Compare tensors with those of eager, in order.

    Raises:
        OtherOutputs: they differ in number, dtype or shape.
    """
    kinds, own = [_kind(tensor) for tensor in expected], [_kind(tensor) for tensor in found]
    if kinds != own:
        raise OtherOutputs(
            f"returns {', '.join(own) or 'nothing'}; eager returns {', '.join(kinds) or 'nothing'}"
        )
    pairs = [_compared(*pair) for pair in zip(expected, found, strict=True)]
    differences = [difference for difference, _ in pairs]
    return Agreement(max(differences, default=0.0), all(is_equal for _, is_equal in pairs))


def _compared(expected: torch.Tensor, found: torch.Tensor) -> tuple[float, bool]:
    if not expected.numel():
        return 0.0, True
    precision = torch.finfo(expected.dtype).eps if expected.dtype.is_floating_point else 0.0
    if expected.is_complex():
        precision = torch.finfo(expected.dtype).eps
        expected, found = torch.view_as_real(expected), torch.view_as_real(found)
    a, b = expected.detach().cpu().double(), found.detach().cpu().double()
    same = (a == b) | (a.isnan() & b.isnan())
    distances = torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=math.inf, posinf=math.inf))
    finite = a[a.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    difference = float(distances.max())
    return difference, difference <= math.sqrt(precision) * largest


def _kind(tensor: torch.Tensor) -> str:
    return f"{plain_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"


if __name__ == "__main__":
    main(sys.argv[1:])
