"""The outputs of `run` on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

safetensors = pytest.importorskip("safetensors.torch")

from fakexport.deploy import write_outputs  # noqa: E402
from tests.forked import run_python  # noqa: E402


def test_outputs_that_share_memory_are_written_each_for_itself(tmp_path: Path) -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    outputs = {"whole": whole, "again": whole, "turned": whole.t(), "none": torch.zeros(0, 3)}

    write_outputs(tmp_path / "out.safetensors", outputs)

    read = safetensors.load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in outputs.items())


def test_a_size_limit_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.safetensors"
    write_outputs(path, {"old": torch.zeros(2)})
    before = path.read_bytes()
    program = (
        "import resource, signal, sys, torch\n"
        "from fakexport.deploy import write_outputs\n"
        "sys.tracebacklimit = 0\n"  # Stderr is a file too.
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_outputs(sys.argv[1], {'new': torch.ones(1000)})\n"
    )

    process = run_python(program, path)

    assert process.returncode == 1
    assert "FileWriteError: cannot write" in process.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
