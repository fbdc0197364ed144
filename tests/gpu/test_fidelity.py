"""Programs captured under emulation are those captured with the device: where there is one."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu_proof.fidelity import is_failed
from benchmarks.gpu_proof.parts import Part, run_part
from benchmarks.gpu_proof.programs import CASES, path_of, read_lines
from benchmarks.gpu_proof.run import Run
from benchmarks.gpu_proof.smoke import device_and_profile

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", CASES)
def test_the_program_is_the_same_with_and_without_the_device(name, tmp_path):
    run = Run.in_folder(tmp_path, profile=device_and_profile()[1], is_pretend=False)

    for kind in ("native", "emulated"):
        run_part(run, Part("fidelity", kind, name, is_hidden=kind == "emulated"))

    native, emulated = (read_lines(path_of(run, kind, name)) for kind in ("native", "emulated"))
    assert not is_failed(native), native
    assert native == emulated
