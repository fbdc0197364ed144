"""Programs captured under emulation are those captured with the device: where there is one."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu_fidelity import CASES, device_and_profile, in_a_process

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", CASES)
def test_the_program_is_the_same_with_and_without_the_device(name):
    _, profile = device_and_profile()

    native, _ = in_a_process(name, None)
    emulated, _ = in_a_process(name, profile)

    assert not native[0].startswith(("failed", "process")), native[0]
    assert native == emulated
