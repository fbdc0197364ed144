"""Eight threads of one process that emulate, export, check, plan, fork, and work with real tensors.

`make stress` runs it for ten minutes: `python -m tests.stress.threads SECONDS`. A line for each kind of work
says how often it was done. It fails with a wrong answer, an exception, or the death of the process, of which
faulthandler prints the stacks.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import fakexport as fe

_LIMIT_S = 120.0
done: Counter[str] = Counter()
faults: list[str] = []


def model() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(nn.Linear(3, 3), nn.Dropout()), (torch.zeros(2, 3),)


def emulate_and_differentiate() -> None:
    with fe.emulate("H100"), FakeTensorMode():
        weight = torch.empty(3, 3, device="cuda", requires_grad=True)
        (weight @ weight).sum().backward()
        assert weight.grad is not None
        assert weight.grad.device == torch.device("cuda", 0)
        assert torch.cuda.get_device_capability() == (9, 0)


def fake_without_devices() -> None:
    with fe.fake_mode("2xA100-40GB"):
        assert nn.Linear(2, 2, device="cuda:1").weight.device.index == 1


def export() -> None:
    program = fe.export(model, target="T4")
    assert [node.target for node in program.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.linear.default,
        torch.ops.aten.dropout.default,
    ]


def check() -> None:
    report = fe.check(model, target=["cpu", "H100"])
    assert [verdict.is_exportable for verdict in report.verdicts] == [True, True]


def plan() -> None:
    assert fe.plan(model, target="H100").points


def compute() -> None:
    x = torch.arange(4.0, requires_grad=True)
    (x * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert not torch.cuda.is_available() or torch.cuda.device_count() > 0


def fork() -> None:
    """A process forked while others trace ends; what it could hang in, it does not touch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


WORK: tuple[Callable[[], None], ...] = (
    emulate_and_differentiate,
    emulate_and_differentiate,
    fake_without_devices,
    export,
    export,
    check,
    plan,
    compute,
)


def repeat(work: Callable[[], None], end: float) -> None:
    try:
        while time.monotonic() < end and not faults:
            work()
            done[work.__name__] += 1
    except BaseException:
        faults.append(f"{work.__name__}: {traceback.format_exc()}")


def main(seconds: float) -> int:
    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds + _LIMIT_S, exit=True)  # A deadlock.
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=repeat, args=(work, end)) for work in (*WORK, fork)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(dict(done), *faults, sep="\n")
    missing = {work.__name__ for work in (*WORK, fork)} - done.keys()
    return 1 if faults or missing else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
