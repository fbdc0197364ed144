"""Step: record versions and the device, and capture one small model each way. Other steps need this one."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from benchmarks.gpu_proof import fidelity
from benchmarks.gpu_proof.parts import Part, run_part
from benchmarks.gpu_proof.run import Run
from benchmarks.gpu_proof.summary import read_results

_PACKAGES = (
    "transformers accelerate peft timm triton onnx onnxruntime safetensors numpy pytest typer rich jinja2"
)
MODEL = "mlp-gpu"


def identify(run: Run) -> Run | None:
    """Record versions and the device. Return the run with the profile of the GPU, or None if this fails."""
    if not run_part(run, Part("smoke", "device", limit_s=100)):
        return None
    found = json.loads((run.work / "device.json").read_text())
    return dataclasses.replace(run, profile=found["profile"])


def step(run: Run) -> None:
    """Capture one model in each way."""
    fidelity.step(dataclasses.replace(run, only=(MODEL,)))


def is_passed(run: Run) -> bool:
    """Return whether the latest comparisons of the model found equal programs."""
    kinds = fidelity.kinds_of(run)
    pairs = [" = ".join(pair) for pair in fidelity.PAIRS if set(pair) <= set(kinds)]
    lines = read_results(run.out / "results.jsonl")
    last = {line["pair"]: line["ok"] for line in lines if line["case"] == MODEL and "pair" in line}
    return all(last.get(pair, False) for pair in pairs)


def device(run: Run, _: str) -> dict[str, Any]:
    """Run one kernel on the device, and return the versions and the device."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cores": os.cpu_count(),
        "profile": run.profile,
    }
    for package in _PACKAGES.split():
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = None
    if not run.is_pretend:
        facts["device"], facts["profile"] = device_and_profile()
        facts["memory_bytes"] = torch.cuda.mem_get_info(0)[1]
        assert float(torch.ones(8, device="cuda:0").sum()) == 8
    (run.work / "device.json").write_text(json.dumps(facts))
    return facts


def device_and_profile() -> tuple[str, str]:
    """Return the name of the GPU, and the profile of that name.

    Raises:
        LookupError: there is no GPU, or no profile for it.
    """
    from fakexport.emulation.devices import load_profiles

    if not torch.cuda.is_available():
        raise LookupError("no CUDA device: run this on a machine with an NVIDIA GPU, or pass --pretend")
    name = torch.cuda.get_device_name(0)
    for profile in load_profiles().values():
        if profile.vendor_name == name:
            return name, profile.name
    raise LookupError(f"no profile is called {name!r}: add one to profiles.toml")


PARTS = {"device": device}
