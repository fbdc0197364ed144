"""A worker process of the benchmark: `python -m fakexport.deploy.benchmark.worker ALIVE FOLDER PART MODE`."""

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

from fakexport.deploy.comparison import distance, largest
from fakexport.emulation.devices import peak_bytes, resident_bytes
from fakexport.error import InvalidValue
from fakexport.exporting.program import plain_name
from fakexport.files.processes import end_with_parent
from fakexport.models.sources import load_operator_library
from fakexport.report import Spread

from .model import Call, Inputs, Model, Request, call_of, copied
from .modes import MODES, Mode
from .outcome import Outcome, StepFailed
from .reference import Facts, references, write_reference


def main(arguments: Sequence[str]) -> None:
    """Run one part of a benchmark (`reference`, `make` or `use`), and write its `Outcome` to the folder."""
    alive, place, part, name = arguments
    end = os._exit
    end_with_parent(int(alive))
    work(Path(place), part, name)
    end(0)  # Skip the model's threads and exit handlers, which could change the exit code.


def work(folder: Path, part: str, name: str = "") -> None:
    """Run a part of a benchmark in this process."""
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
    """Write the files of a format, and measure time and size."""
    assert mode.make is not None
    files = folder / mode.name
    files.mkdir()
    with outcome.during("make"):
        _load_libraries(request)
        model = Model.of(request)
        inputs = copied(references(folder)[0][0])
        start = time.perf_counter()
        mode.make(request, model, inputs, files)
        outcome.note(make_s=time.perf_counter() - start)
        outcome.note(size_bytes=sum(path.stat().st_size for path in files.rglob("*") if path.is_file()))


def _use(request: Request, mode: Mode, folder: Path, outcome: Outcome) -> None:
    """Open and run a format, compare its outputs with eager mode, and time both alternately."""
    (inputs, expected), *others = references(folder)
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
        for other_inputs, other_outputs in others:
            _resize(call, other_inputs, other_outputs, outcome)
    with outcome.during("time"):
        eager = call if mode.name == "eager" else call_of(Model.of(request).module)
        own_s, eager_s = in_turns((call, eager), inputs, warmup=request.warmup, repeat=request.repeat)
        ratios = [ours / theirs for ours, theirs in zip(own_s, eager_s, strict=True)]
        outcome.note(latency_s=asdict(Spread.of(own_s)), ratio=asdict(Spread.of(ratios)))


def _resize(call: Call, inputs: Inputs, expected: Sequence[torch.Tensor], outcome: Outcome) -> None:
    """Compare the outputs with eager mode for inputs of a different size. Later steps run in any case."""
    try:
        with outcome.during("resize"):
            agreed = agreement(expected, call(copied(inputs)))
            if not agreed.is_equal:
                raise InvalidValue(f"wrong outputs: they differ from eager's by {agreed.difference:.3g}")
            outcome.note(keeps_dynamic=True)
    except StepFailed:
        outcome.note(keeps_dynamic=False)


def in_turns(
    calls: tuple[Call, Call], inputs: Inputs, *, warmup: int, repeat: int
) -> tuple[list[float], list[float]]:
    """Time two calls alternately, so that load on the machine affects both equally.

    In every other turn, the second call runs first. If both calls are the same object, it runs once per turn.
    The inputs are copied for each call, before it is timed. Return the times of each call in seconds, one per
    turn, without the `warmup` turns.
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
    """Prevent imports of packages in the block. Packages that are already imported are not affected."""
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
    """How much the outputs of a format differ from the outputs of eager mode.

    Args:
        difference: The largest difference between two elements; infinity if only one of them is NaN or
            infinite.
        is_equal: Whether each tensor differs by at most the square root of its dtype's precision, relative to
            its largest element (float32: 3e-4; bfloat16: 0.09). Integers and booleans must be identical. The
            bound allows for different kernels and orders of operations, but not for a wrong constant or
            shape.
    """

    difference: float
    is_equal: bool


def agreement(expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Agreement:
    """Compare output tensors with the output tensors of eager mode, in order."""
    kinds, own = [_kind(tensor) for tensor in expected], [_kind(tensor) for tensor in found]
    if kinds != own:
        raise OtherOutputs(
            f"returns {', '.join(own) or 'nothing'}; eager returns {', '.join(kinds) or 'nothing'}"
        )
    pairs = [_compared(*pair) for pair in zip(expected, found, strict=True)]
    differences = [difference for difference, _ in pairs]
    return Agreement(max(differences, default=0.0), all(is_equal for _, is_equal in pairs))


def _compared(expected: torch.Tensor, found: torch.Tensor) -> tuple[float, bool]:
    difference = distance(expected, found)
    has_rounding = expected.is_floating_point() or expected.is_complex()
    allowed = math.sqrt(torch.finfo(expected.dtype).eps) * largest(expected) if has_rounding else 0.0
    return difference, difference <= allowed


def _kind(tensor: torch.Tensor) -> str:
    return f"{plain_name(tensor.dtype)}[{','.join(map(str, tensor.shape))}]"


if __name__ == "__main__":
    main(sys.argv[1:])
