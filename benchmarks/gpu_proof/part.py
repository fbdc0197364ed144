"""Entry of the process of one part: `python -m benchmarks.gpu_proof.part STEP PART CASE RUN`."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from importlib import import_module

from benchmarks.gpu_proof.parts import RECORDED
from benchmarks.gpu_proof.run import Run

_LINES_OF_TRACE = 14


def main() -> int:
    """Run the part, and record the returned result, or an exception with its traceback."""
    step, name, case, given = sys.argv[1:]
    module = step if "." in step else f"benchmarks.gpu_proof.{step}"
    run, begun = Run.of_json(given), time.perf_counter()
    warnings.simplefilter("ignore")
    try:
        found = import_module(module).PARTS[name](run, case)
    except Exception as error:
        lines = traceback.format_exc().strip().splitlines()[-_LINES_OF_TRACE:]
        text = f"{type(error).__name__}: {error}"[:600]
        run.record(step, case or name, part=name, error=text, traceback=lines)
        return RECORDED
    if found is not None:
        seconds = round(time.perf_counter() - begun, 1)
        run.record(step, case or name, part=name, **found, seconds=seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
