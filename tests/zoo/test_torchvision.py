"""`torchvision:NAME`: detectors that find any number of objects, next to eager mode."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.versions import release

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """torchvision without its operators: the builds on PyPI need a torch for CUDA."""
    made = tmp_path_factory.mktemp("torchvision")
    minor = release(importlib.metadata.version("torch"))[1] + 15
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(made)]
    subprocess.run([*command, f"torchvision==0.{minor}.*"], check=True)
    return made


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("ssdlite320_mobilenet_v3_large", marks=pytest.mark.slow),
        pytest.param("fasterrcnn_mobilenet_v3_large_320_fpn", marks=pytest.mark.exhaustive),
        pytest.param("retinanet_resnet50_fpn", marks=pytest.mark.exhaustive),
        pytest.param("fcos_resnet50_fpn", marks=pytest.mark.exhaustive),
        pytest.param("ssd300_vgg16", marks=pytest.mark.exhaustive),
    ],
)
def test_any_number_of_objects_is_that_of_eager(name: str, folder: Path) -> None:
    done = run(folder, "-m", "tests.torchvision_detectors", name, str(folder))

    assert done.returncode == 0, done.stderr
    counts = [int(line.partition(" ")[0]) for line in done.stdout.splitlines()]
    assert counts[0] > 1
    assert counts[-1] == 0


@pytest.mark.slow
def test_a_torchvision_for_another_torch_is_answered_with_a_command(folder: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(folder)!r})
from fakexport.models.sources import resolve
resolve("torchvision:resnet50")
"""
    done = run(folder, "-c", code)

    *_, message = done.stderr.splitlines()
    assert "the installed torchvision was made for a different build of torch: run `" in message
    assert "-m pip install torch==" in message
