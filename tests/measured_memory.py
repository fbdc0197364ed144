"""What a real run on the CPU allocates, as torch's profiler records it: the oracle of predictions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


def measured_changes(run: Callable[[], Any]) -> list[int]:
    """Return the bytes of every allocation, and minus those of every release, of the second of two runs."""
    with torch.no_grad():
        run()
        with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            result = run()
        del result
    events = enumerate(recorded.profiler.kineto_results.events())
    memory = [
        (event.start_ns(), index, event.nbytes()) for index, event in events if event.name() == "[memory]"
    ]
    return [size for _, _, size in sorted(memory)]


def measured_peak(run: Callable[[], Any]) -> int:
    """Return the most bytes that a run held at once, above what was there before it."""
    return max(accumulate(measured_changes(run)), default=0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Enter a context in which Kineto writes nothing to the process's error stream."""
    own = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def measured_operators(run: Callable[[], Any]) -> list[tuple[str, int]]:
    """Return the innermost operator and the bytes of every allocation of the second of two runs."""
    with torch.no_grad():
        run()
        with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            run()
    events = list(recorded.profiler.kineto_results.events())
    spans = sorted(
        (event.start_ns(), -event.duration_ns(), event.name())
        for event in events
        if event.name() != "[memory]"
    )
    found = []
    open_spans: list[tuple[int, str]] = []
    memory = sorted((e.start_ns(), i, e.nbytes()) for i, e in enumerate(events) if e.name() == "[memory]")
    position = 0
    for start, _, size in memory:
        while position < len(spans) and spans[position][0] <= start:
            begin, negative, name = spans[position]
            open_spans = [span for span in open_spans if span[0] > begin]
            open_spans.append((begin - negative, name))
            position += 1
        inside = [name for end, name in open_spans if end >= start]
        if size > 0:
            found.append((" ".join(inside[-2:]), size))
    return found


def measured_training(module: nn.Module, step: Callable[[torch.optim.Optimizer], None], make: Any) -> int:
    """Return the most bytes that two steps of training add to weights and inputs, after two that warm up.

    Args:
        module: Real, without gradients.
        step: Runs one step.
        make: Returns a new optimizer.
    """
    for is_recorded in (False, True):
        optimizer = make()
        recorder = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with _quiet(), recorder if is_recorded else nullcontext():
            step(optimizer)
            step(optimizer)
        module.zero_grad(set_to_none=True)
        del optimizer
    events = enumerate(recorder.profiler.kineto_results.events())
    memory = [
        (event.start_ns(), index, event.nbytes()) for index, event in events if event.name() == "[memory]"
    ]
    return max(accumulate(size for _, _, size in sorted(memory)))
