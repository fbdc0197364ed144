"""AOTInductor packages for a GPU that this machine lacks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import fakexport as fe
from fakexport.deploy import DeployError
from fakexport.deploy.aoti import host, open_aoti

pytest.importorskip("triton")
from tests.e2e.absent_gpu_programs import PROGRAMS, Perceptron
from tests.e2e.absent_gpu_proof import Prover, check_package, noting, records, simulated

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux compiles for absent GPUs"),
]
SMALL = "perceptron dynamic"
IN_CI = ("written buffer", "cache", "attention", "attention bfloat16", "images", "llama")


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    found = Prover()
    yield found
    found.close()


def test_a_small_package_computes_what_eager_does(tmp_path, prover):
    assert prover.kernels(SMALL, tmp_path)


def _marked(name):
    marks = [pytest.mark.slow, pytest.mark.chosen] if name in IN_CI else [pytest.mark.exhaustive]
    return pytest.param(name, marks=marks)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [_marked(name) for name in PROGRAMS if name != SMALL])
def test_a_package_computes_what_eager_does(name, tmp_path, prover):
    """The compiled host code and the source of the kernels run; see `simulated_gpu`."""
    assert prover.kernels(name, tmp_path)

    code = b"".join(text for path, text in records(tmp_path / "package.pt2").items() if path.endswith(".cpp"))
    # The kernel that the GPU would select, not the math kernel.
    if name.startswith("attention"):
        assert (b"scaled_dot_product_efficient_attention" in code) is (name == "attention")
        assert (b"scaled_dot_product_cudnn_attention" in code) is (name == "attention bfloat16")


def test_at_least_40_programs_are_compiled():
    assert len(PROGRAMS) >= 40


@pytest.mark.slow
def test_one_package_for_two_gpus_shares_the_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("fakexport._torch.operators.absent_gpu.TESTED", ())
    torch.manual_seed(0)
    model, x = Perceptron().eval(), torch.randn(7, 24)
    bound = fe.bind(fe.export(Perceptron, (torch.zeros(7, 24),)), dict(model.state_dict()))

    with noting(tmp_path / "kernels.json"):
        made = fe.compile(bound, tmp_path / "package.pt2", to="aoti", target=["A100", "H100"])

    package, weights = made.files
    assert any("were chosen by fixed rules, not by timing" in note for note in made.notes)
    assert any("was not tested with torch" in note for note in made.notes)
    assert load_file(weights).keys() == model.state_dict().keys()
    assert all(torch.equal(load_file(weights)[name], value) for name, value in model.state_dict().items())
    assert check_package(package, "A100", "sm_80")
    assert check_package(package, "H100", "sm_90")
    with pytest.raises(DeployError, match="was compiled for cuda, which is not available on this machine"):
        open_aoti(package)
    weights.rename(tmp_path / "weights.safetensors")
    save_file({"0": x}, tmp_path / "inputs-0.safetensors")
    simulated(tmp_path)  # The code for the H100.
    (found,) = load_file(tmp_path / "outputs-0.safetensors").values()
    torch.testing.assert_close(found, model(x).detach())


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        (["H100", "H200"], {}, "H200 and H100 have the same compute capability, sm_90, so they"),
        (["H100", "cpu"], {}, "cpu: only NVIDIA GPUs can share a package"),
        (["A100", "H100"], {"weights": "inside"}, "a package for several GPUs cannot contain its weights"),
    ],
)
def test_gpus_that_cannot_share_a_package(targets, options, message, tmp_path):
    program = fe.export(Perceptron, (torch.zeros(7, 24),))

    with pytest.raises(ValueError, match=message):
        fe.compile(program, tmp_path / "package.pt2", to="aoti", target=targets, **options)


@pytest.mark.slow
def test_two_builds_are_the_same_package(tmp_path, monkeypatch):
    """Other folders for temporary files, the cache and the package; each build has processes of its own.

    For the second build, this process believes that the machine has the GPU.
    """
    packages, notes = [], []
    for name in ("one", "another-folder"):
        if packages:
            monkeypatch.setattr(host, "exists_here", lambda device: True)
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
            monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
        folder = tmp_path / name
        (folder / "temporary").mkdir(parents=True)
        monkeypatch.setenv("TMPDIR", str(folder / "temporary"))
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.chdir(folder)
        program = fe.export(Perceptron, (torch.zeros(7, 24),), target="H100", device_map="cuda:0")
        notes.append(fe.compile(program, "package.pt2", to="aoti", cache=folder / "cache").notes[0])
        packages.append(folder / "package.pt2")

    rule = "kernel configurations for H100-80GB were chosen by fixed rules, not by timing them on the GPU"
    assert notes == [rule, f"{rule}: pass --tune to time them"]

    one, other = map(records, packages)
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []
    assert packages[0].read_bytes() == packages[1].read_bytes()
    assert not any(str(tmp_path).encode() in content for content in one.values())
    assert not any(str(Path(torch.__file__).parent).encode() in content for content in one.values())
