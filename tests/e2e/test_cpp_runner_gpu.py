"""The C++ program runs the code for the GPU that is here, and no other."""

import json
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

from tests.cpp_runner import Runner
from tests.e2e.compiled_models import mlp

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cpp_runner")]

DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = 0; return number; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? MAJOR : attribute == 76 ? MINOR : -1;
  return 0;
}
"""


def with_driver(capability: str | None, folder: Path, monkeypatch) -> None:
    """Put a driver of a GPU with this capability on the library path."""
    if capability is None:
        return
    (folder / "driver.c").write_text(DRIVER)
    names = [f"-DMAJOR={capability[0]}", f"-DMINOR={capability[1]}"]
    subprocess.run(
        ["gcc", "-shared", "-fPIC", *names, "-o", folder / "libcuda.so.1", folder / "driver.c"], check=True
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))


def changed_package(package: Path, out: Path, *, code: str = "model", **change: object) -> Path:
    """Copy a package. Name its code, and change its description."""
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith("_metadata.json"):
                of_torch = json.loads(content)
                of_torch["fakexport"] = json.dumps({**json.loads(of_torch["fakexport"]), **change})
                content = json.dumps(of_torch).encode()
            new.writestr(entry.filename.replace("aotinductor/model/", f"aotinductor/{code}/"), content)
    return out


@pytest.mark.parametrize(
    ("capability", "message"),
    [
        (None, "the package was compiled for cuda, which is not available on this machine"),
        (
            "80",
            "the package was compiled for a GPU with sm_90, but this one has sm_80: compile it for this GPU",
        ),
        ("90", "the package needs a CUDA build of torch"),
    ],
)
def test_a_package_for_another_gpu_is_refused(capability, message, run, tmp_path, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with_driver(capability, tmp_path, monkeypatch)
    package = changed_package(run.package, tmp_path / "gpu.aoti.pt2", device="cuda", instructions=["sm_90"])
    weights = run.package.with_suffix(".safetensors")

    refused = Runner(run.program, package).refusal("--inputs", tmp_path / "none", weights=weights)

    assert refused == message


def test_a_package_for_several_gpus_has_a_code_for_each(run, tmp_path, monkeypatch):
    package = changed_package(run.package, tmp_path / "gpu.aoti.pt2", code="sm_90")
    weights, inputs = run.package.with_suffix(".safetensors"), mlp().inputs
    chosen = Runner(run.program, package)

    assert "cannot be read: " in chosen.refusal("--inputs", tmp_path / "none", weights=weights)
    with_driver("90", tmp_path, monkeypatch)
    found = chosen.outputs(inputs, tmp_path, weights=weights)  # The code is for the CPU.
    assert all(torch.equal(found[name], value) for name, value in run.outputs(inputs, tmp_path).items())
