"""The C++ program runs the code for the GPU that is here, and no other."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

import fakexport as fe
from fakexport.deploy import DeployError
from fakexport.deploy.aoti import compile_aoti, opened_package
from fakexport.deploy.aoti.package import write_joined
from fakexport.files.container import read_container, write_container
from tests.cpp_runner import Runner

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


def changed_package(package: Path, out: Path, **change: object) -> Path:
    """Copy a package, and change its description."""
    with read_container(package, trust=True) as old:
        records = {name: old.record(name) for name in old.names}
    for name in records:
        if name.endswith("_metadata.json"):
            of_torch = json.loads(records[name])
            of_torch["fakexport"] = json.dumps({**json.loads(of_torch["fakexport"]), **change})
            records[name] = json.dumps(of_torch).encode()
    write_container(out, records)
    return out


def for_two_gpus(package: Path, folder: Path) -> Path:
    """Write the package as one for two GPUs. The code for sm_90 is that of the package, for the CPU."""
    other = changed_package(package, folder / "80.pt2", device="cuda", instructions=["sm_80"])
    joined = folder / "gpus.aoti.pt2"
    write_joined(joined, {"sm_80": other, "sm_90": package})
    return joined


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


class Shifted(torch.nn.Module):
    """Its shift is a constant, which no checkpoint has."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(4.0), persistent=False)

    def forward(self, x):
        return self.linear(x) + self.shift


def test_a_package_for_several_gpus_has_a_code_for_each(run, tmp_path, monkeypatch):
    module, x = Shifted(), torch.randn(3, 4)
    program = fe.bind(fe.export(Shifted, (x,)), dict(module.state_dict()))
    made = compile_aoti(program, tmp_path / "shifted.pt2", weights="beside").path
    with_driver("90", tmp_path, monkeypatch)
    chosen = Runner(run.program, for_two_gpus(made, tmp_path))

    found = chosen.outputs({"x": x}, tmp_path, weights=made.with_suffix(".safetensors"))

    torch.testing.assert_close(next(iter(found.values())), module(x).detach())


def test_a_gpu_that_has_no_code_is_refused_as_in_python(run, tmp_path, monkeypatch):
    package = for_two_gpus(run.package, tmp_path)
    with_driver("75", tmp_path, monkeypatch)
    monkeypatch.setattr(opened_package, "exists_here", lambda device: True)
    monkeypatch.setattr(opened_package, "instructions_here", lambda device: ("sm_75",))

    refused = Runner(run.program, package).refusal("--inputs", tmp_path / "none")
    with pytest.raises(DeployError) as in_python:
        opened_package.open_aoti(package)

    words = "was compiled for a GPU with sm_80 or sm_90, but this one has sm_75: compile it for this GPU"
    assert refused == f"the package {words}"
    assert str(in_python.value) == f"{package} {words}"
