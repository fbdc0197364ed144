"""What a process is told of its own memory."""

from __future__ import annotations

import mmap
import subprocess
import sys

import pytest
import torch

from fakexport.emulation.devices.host_memory import peak_bytes, resident_bytes


@pytest.mark.slow
def test_the_peak_keeps_what_was_given_back():
    size, slack = 256 * 2**20, 2**20  # The system counts by threads and now and then only.
    before = resident_bytes()

    # Not a tensor: what earlier tests freed can still be resident, and malloc would hand that out.
    held = mmap.mmap(-1, size)
    for page in range(0, size, mmap.PAGESIZE):
        held[page] = 1
    grown = resident_bytes()
    held.close()

    assert grown >= before + size - slack
    assert peak_bytes() >= grown - slack
    assert resident_bytes() < grown - size // 2


def test_the_memory_of_the_process_that_started_this_one_is_not_counted() -> None:
    held = torch.ones(256 * 2**20, dtype=torch.uint8)
    code = "from fakexport.emulation.devices.host_memory import peak_bytes; print(peak_bytes())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert 0 < int(done.stdout) < held.nbytes < peak_bytes()
