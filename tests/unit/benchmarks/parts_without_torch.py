"""Parts for the tests of the runner of `benchmarks.gpu_proof`."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from benchmarks.gpu_proof.parts import turn
from benchmarks.gpu_proof.run import Run


def works(run: Run, case: str) -> dict[str, Any]:
    return {"ok": True, "is_gpu_hidden": os.environ.get("CUDA_VISIBLE_DEVICES") == ""}


def raises(run: Run, case: str) -> None:
    raise LookupError(f"no case is called {case}")


def dies(run: Run, case: str) -> None:
    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def sleeps(run: Run, case: str) -> None:
    run.record("sleeps", case, ok=True)
    time.sleep(60)


def waits(run: Run, case: str) -> dict[str, Any]:
    """Return when this part had the GPU."""
    turn()
    begun = time.time()
    time.sleep(0.2)
    return {"begun": begun, "ended": time.time()}


PARTS = {"works": works, "raises": raises, "dies": dies, "sleeps": sleeps, "waits": waits}
