"""A benchmark with all kinds of cells."""

from __future__ import annotations

import math

from fakexport.report import BenchFailure, BenchMeasures, BenchReport, BenchRow, Spread

__all__ = ["sample_bench"]


def sample_bench() -> BenchReport:
    """One mode that works, one that cannot be exported, one that gives wrong numbers."""
    works = BenchMeasures(
        difference=1.5e-7,
        size_bytes=137_416,
        make_s=0.41,
        load_s=0.0139,
        first_call_s=1.2e-3,
        latency_s=Spread(4.0e-4, 3.9e-4, 4.4e-4, 20),
        ratio=Spread(1.25, 1.2, 1.4, 20),
        memory_bytes=7_864_320,
    )
    wrong = BenchMeasures(math.inf, 2048, 0.1, 0.2, 0.3, None, None, 4096)
    return BenchReport(
        source="mlp.py:mlp",
        inputs=("x=float32[8,64]",),
        other_inputs=("x=float32[9,64]",),
        assumptions=("the model came in training mode and was put into eval mode",),
        rows=(
            BenchRow("export", True, True, True, False, (), works),
            BenchRow("torchscript-script", False, failures=(BenchFailure("make", "RuntimeError: no"),)),
            BenchRow(
                "weights",
                True,
                False,
                False,
                True,
                (BenchFailure("resize", "wrong outputs"), BenchFailure("time", "timed out after 9 s")),
                wrong,
            ),
        ),
        versions={"fakexport": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        processor="2 x a processor",
        threads=1,
    )
