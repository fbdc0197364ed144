"""Step: check that a program captured without a GPU computes the same values as eager mode on the GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.gpu_proof import programs
from benchmarks.gpu_proof.parts import Part, run_parts
from benchmarks.gpu_proof.run import Run

CASES = {
    "literals": None, "captioning-decoder": None, "gpt2": "float16", "bert": "float32", "vit": "bfloat16",
    "clip": "float32", "t5": "float32", "whisper": "float16", "wav2vec2": "float32", "dinov2": "bfloat16",
    "llama-1b": "bfloat16",
}  # fmt: skip
"""Name -> dtype of the weights; None for the dtype of the source."""

TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Dtype of an output -> largest allowed relative error: norm of the error / norm of the eager output."""

_CAPTURED_FOR = ("gpu", "cpu")
_AT_A_TIME = 6
_TOKENS = (3, 50)


def step(run: Run) -> None:
    """Run the programs of each model in one process."""
    parts = [Part("values", "numbers", name, limit_s=80) for name in run.chosen(CASES)]
    run_parts(run, parts, jobs=min(run.jobs, _AT_A_TIME))


def path_of(run: Run, name: str, captured_for: str) -> Path:
    return run.made / "values" / f"{name}-{captured_for}.pt2"


def export(run: Run, name: str) -> dict[str, Any]:
    """Write the programs of a model for the GPU and for the CPU."""
    import fakexport as fe

    sizes = {}
    for kind, target, device_map in (("gpu", run.profile, "cuda:0"), ("cpu", "cpu", None)):
        path = path_of(run, name, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        program = fe.export(_source_of(name), target=target, dtype=CASES[name], device_map=device_map)
        fe.save(program, path)
        sizes[kind] = path.stat().st_size
    return {"bytes": sizes}


def _source_of(name: str) -> str:
    if name == "llama-1b":
        return "hf:examples/configs/llama-3.2-1b.json"
    return programs.CASES[name].source


def numbers(run: Run, name: str) -> None:
    """Record the error of the program captured for the GPU and of the program retargeted from the CPU."""
    import fakexport as fe
    from fakexport.models.sources import resolve

    source = resolve(_source_of(name))
    dtype = CASES[name]
    torch.manual_seed(0)
    module, args, kwargs = programs.model_on(source, run.device, dtype and getattr(torch, dtype))
    module.eval()
    args, kwargs = tree_map_only(torch.Tensor, random_like, (args, kwargs))
    with torch.no_grad():
        eager, again = (_tensors(module(*args, **kwargs)) for _ in range(2))
    is_repeatable = all(map(torch.equal, eager, again))
    for kind in _CAPTURED_FOR:
        program = _on_device(fe.load(path_of(run, name, kind)), kind, run)
        moved = {"cuda:0": "cpu"} if run.is_pretend and kind == "gpu" else None
        bound = fe.bind(program, dict(module.state_dict()), devices=moved, check_finite=False)
        with torch.no_grad():
            got = _tensors(bound.module()(*args, **kwargs))
        facts = distance(eager, got)
        run.record("values", name, captured_for=kind, is_eager_repeatable=is_repeatable, **facts)


def _on_device(program: Any, kind: str, run: Run) -> Any:
    from fakexport.exporting.program import retarget

    return retarget(program, {"cpu": "cuda:0"}) if kind == "cpu" and not run.is_pretend else program


def random_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return random values for an example input of floats, or of token ids that are all 0."""
    generator = torch.Generator(tensor.device).manual_seed(1)
    if tensor.is_floating_point():
        values = torch.randn(tensor.shape, device=tensor.device, generator=generator)
        return values.to(tensor.dtype)
    if tensor.dtype is torch.int64 and tensor.dim() == 2 and not tensor.any():
        return torch.randint(*_TOKENS, tensor.shape, device=tensor.device, generator=generator)
    return tensor


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def distance(wanted: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Compare outputs. Return whether all bits are equal, and the largest relative error."""
    if len(wanted) != len(got):
        return {"ok": False, "difference": f"{len(got)} tensors instead of {len(wanted)}"}
    for a, b in zip(wanted, got, strict=True):
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            other = f"{b.dtype} {list(b.shape)} {b.device} instead of {a.dtype} {list(a.shape)} {a.device}"
            return {"ok": False, "difference": other}
    pairs = [(a, b) for a, b in zip(wanted, got, strict=True) if not torch.equal(a, b)]
    errors = [(_relative(a, b), TOLERANCES.get(a.dtype, 0.0)) for a, b in pairs]
    return {
        "ok": all(error <= most for error, most in errors),
        "is_equal_to_the_bit": not pairs,
        "relative_error": max((error for error, _ in errors), default=0.0),
    }


def _relative(wanted: torch.Tensor, got: torch.Tensor) -> float:
    wanted, got = wanted.double(), got.double()
    finite = wanted.isfinite()
    if not torch.allclose(wanted[~finite], got[~finite], equal_nan=True) or not got[finite].isfinite().all():
        return math.inf
    wanted, got = wanted[finite], got[finite]
    return float((wanted - got).norm() / wanted.norm().clamp_min(1e-30))


PARTS = {"export": export, "numbers": numbers}
