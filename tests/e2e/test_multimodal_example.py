"""The example of the parts of a multimodal model."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "multimodal.py"


@pytest.mark.slow
def test_the_parts_write_what_transformers_writes(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    first, *written = done.stdout.splitlines()
    assert first == "the same as transformers"
    assert len(set(written)) == 2  # Two images, two texts.
