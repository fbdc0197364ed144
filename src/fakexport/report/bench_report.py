"""What ways to hand a model over come to, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fakexport.report.spread import Spread

BenchStep = Literal["make", "load", "run", "compare", "resize", "time"]


@dataclass(frozen=True)
class BenchFailure:
    """What did not work, and why.

    Args:
        step: `make` captures, compiles and writes; `load` opens what was written; `run` is the first call;
            `compare` holds its outputs against eager's; `resize` is a call in other sizes; `time` measures.
        reason: One line: an error, a signal, a time limit.
    """

    step: BenchStep
    reason: str


@dataclass(frozen=True)
class BenchMeasures:
    """Figures of one way, on this machine in this run. What was not reached is None.

    Args:
        difference: Largest difference of a number in the outputs to eager's.
        size_bytes: Size of the files that were written.
        make_s: What writing them took, with capture and compilation.
        load_s: From the files to something that can be called, packages that have to be imported included.
        first_call_s: The first call, in which `torch.compile` compiles.
        latency_s: Latency of a later call.
        ratio: Latency over that of eager, call by call in turns in one process; more than 1 is slower.
        memory_bytes: Growth of peak resident memory from before loading until after the first call.
    """

    difference: float | None = None
    size_bytes: int | None = None
    make_s: float | None = None
    load_s: float | None = None
    first_call_s: float | None = None
    latency_s: Spread | None = None
    ratio: Spread | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class BenchRow:
    """One way to hand the model over.

    Args:
        mode: Its name, `export+compile`.
        is_captured: Whether everything was written that has to be. True for eager, which writes nothing.
        is_equal: Whether the outputs are eager's but for rounding; None where it did not run.
        keeps_dynamic: Whether it returns eager's outputs for other sizes too; None if that was not tried.
        needs_code: Whether it is of use only where the model's Python code is; None where it did not load.
        failures: In the order in which they were met.
        measures: The figures.
    """

    mode: str
    is_captured: bool
    is_equal: bool | None = None
    keeps_dynamic: bool | None = None
    needs_code: bool | None = None
    failures: tuple[BenchFailure, ...] = ()
    measures: BenchMeasures = field(default_factory=BenchMeasures)


@dataclass(frozen=True)
class BenchReport:
    """One model in several ways.

    Args:
        source: As the user named it.
        inputs: `input_ids=int64[2,16]`, one for each input tensor.
        other_inputs: The same in the other sizes that were tried; empty where no dimension varies.
        assumptions: Sentences for the reader.
        rows: In the order asked.
        versions: Versions of packages that took part.
        processor: The machine's.
        threads: Threads of torch.
    """

    source: str
    inputs: tuple[str, ...]
    other_inputs: tuple[str, ...]
    assumptions: tuple[str, ...]
    rows: tuple[BenchRow, ...]
    versions: Mapping[str, str]
    processor: str
    threads: int
