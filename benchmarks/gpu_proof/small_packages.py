"""Step: run packages of many small programs, built without a GPU, and compare them with eager mode.

The programs are those of `tests/e2e/absent_gpu_programs.py`, which also run on a simulated GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.gpu_proof.parts import Part, run_parts
from benchmarks.gpu_proof.run import Run
from benchmarks.gpu_proof.values import distance

CASES = (
    *("perceptron static", "perceptron dynamic", "attention", "attention bfloat16"),
    *("masked attention bfloat16", "written buffer", "cache", "images", "reused buffers", "reductions"),
    *("pieces", "large reductions", "scans", "norms", "scattered", "integers", "numbers", "branches"),
    *("selected", "llama", "gpt2", "bert", "t5", "vit", "resnet", "convnext", "mamba", "gemma2", "swin"),
    *("clip", "whisper", "albert", "opt static", "mobilenet_v2 static", "qwen3 static"),
    *("distilbert static", "mixtral sized"),
)
_AT_A_TIME = 4


def step(run: Run) -> None:
    """Run the packages of each quarter of the programs in one process."""
    names = run.chosen(CASES)
    groups = ["|".join(names[at::_AT_A_TIME]) for at in range(_AT_A_TIME)]
    run_parts(run, [Part("small_packages", "check", group, limit_s=80) for group in groups if group])


def path_of(run: Run, name: str) -> Path:
    """Return the path of a package. Its weights and calls are in the same folder."""
    return run.made / "small_packages" / name.replace(" ", "-") / "package.pt2"


def build(run: Run, name: str) -> dict[str, Any]:
    """Build a package with the GPU hidden, and write the weights and calls with eager results of the CPU."""
    import fakexport as fe
    from tests.e2e.absent_gpu_programs import PROGRAMS

    package = path_of(run, name)
    package.parent.mkdir(parents=True, exist_ok=True)
    work = run.work / "small_packages" / name.replace(" ", "-")
    work.mkdir(parents=True, exist_ok=True)
    case = PROGRAMS[name](work)
    weights = {key: value.detach().contiguous().clone() for key, value in case.weights.items()}
    save_file(weights, package.with_name("weights.safetensors"))
    for number, call in enumerate(case.calls):
        for kind, tensors in zip(("inputs", "outputs"), call, strict=True):
            named = {f"{at:03}": tensor.contiguous().clone() for at, tensor in enumerate(tensors)}
            save_file(named, package.with_name(f"{kind}-{number}.safetensors"))
    fe.compile(case.program, package, to="aoti")
    return {"bytes": package.stat().st_size}


def check(run: Run, names: str) -> None:
    """Compare the results of each call on the GPU with those of eager mode on the CPU."""
    torch.backends.cudnn.allow_tf32 = False
    for name in names.split("|"):
        try:
            facts = {"bytes": path_of(run, name).stat().st_size} if run.is_pretend else _compared(run, name)
        except Exception as error:
            run.record("small_packages", name, error=f"{type(error).__name__}: {error}"[:600])
        else:
            run.record("small_packages", name, **facts)


def _compared(run: Run, name: str) -> dict[str, Any]:
    from fakexport.deploy.aoti import open_aoti

    path = path_of(run, name)
    package = open_aoti(path, checkpoint=load_file(path.with_name("weights.safetensors")))
    names = [tensor.name for tensor in package.signature.inputs]
    calls = sorted(path.parent.glob("inputs-*.safetensors"))
    outputs, got = [], []
    for number in range(len(calls)):
        given = load_file(path.with_name(f"inputs-{number}.safetensors"), device=run.device)
        wanted = load_file(path.with_name(f"outputs-{number}.safetensors"))
        found = package(dict(zip(names, (given[at] for at in sorted(given)), strict=True)))
        outputs += [wanted[at] for at in sorted(wanted)]
        got += [one.cpu() for one in found.values()]
    return {"calls": len(calls), **distance(outputs, got)}


PARTS = {"build": build, "check": check}
