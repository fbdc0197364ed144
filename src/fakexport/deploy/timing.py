"""Time calls, and return the outputs of the first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fakexport.report import Spread

from .artifact import Artifact


@dataclass(frozen=True)
class Timed:
    """Outputs and times of calls.

    Args:
        outputs: Outputs of the first call, by name.
        first_call_s: Wall time of the first call; a program that `torch.compile` compiles is compiled in it.
        latency_s: Times of the calls after the warm-up; None if none were requested.
    """

    outputs: dict[str, torch.Tensor]
    first_call_s: float
    latency_s: Spread | None


def run_timed(
    artifact: Artifact, inputs: Mapping[str, torch.Tensor], *, warmup: int = 0, repeat: int = 0
) -> Timed:
    """Call once for the outputs, then `warmup` times untimed, then `repeat` times timed.

    Each call gets its own copies of the inputs, made before the clock starts: a program may mutate its
        inputs. What it writes into its buffers stays, as in any series of calls.

    Raises:
        UnsuitableInputs: before anything runs.
    """
    given = {name: tensor.clone() for name, tensor in inputs.items()} if warmup + repeat else inputs
    start = time.perf_counter()
    outputs = artifact(inputs)
    _wait()
    first_call_s = time.perf_counter() - start
    if warmup + repeat:  # What lies in the artifact's own memory, later calls overwrite.
        outputs = {name: tensor.clone() for name, tensor in outputs.items()}
    seconds = [_seconds(artifact, given) for _ in range(warmup + repeat)][warmup:]
    return Timed(outputs, first_call_s, Spread.of(seconds) if seconds else None)


def _seconds(artifact: Artifact, inputs: Mapping[str, torch.Tensor]) -> float:
    own = {name: tensor.clone() for name, tensor in inputs.items()}
    start = time.perf_counter()
    artifact(own)
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    """Wait until accelerators are done: their kernels are only queued when a call returns."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
