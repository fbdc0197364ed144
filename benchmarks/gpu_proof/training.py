"""Step: compare the memory of two training steps with the plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_proof.memory import compared, intervals, measured_bytes, milliseconds, used_bytes
from benchmarks.gpu_proof.parts import Part, run_in_turn, turn
from benchmarks.gpu_proof.programs import model_on
from benchmarks.gpu_proof.run import Run


@dataclass(frozen=True)
class Case:
    """One model to train.

    Args:
        source: Source for `fakexport plan`.
        batch: Number of sequences or images.
        context: Number of tokens; None for images.
        dtype: Dtype of the weights.
        is_checkpointing: Whether to recompute activations in the backward pass.
    """

    source: str
    batch: int
    context: int | None
    dtype: str = "float32"
    is_checkpointing: bool = False


_LLAMA = "hf:examples/configs/llama-3.2-1b.json"
CASES = {
    "gpt2": Case("hf:gpt2", 4, 512),
    "gpt2-bf16": Case("hf:gpt2", 8, 512, "bfloat16"),
    "bert": Case("hf:bert", 8, 256),
    "t5": Case("hf:t5", 4, 128),
    "vit": Case("hf:vit", 16, None),
    "llama-1b": Case(_LLAMA, 1, 1024, "bfloat16"),
    "llama-1b-checkpointing": Case(_LLAMA, 2, 1024, "bfloat16", is_checkpointing=True),
}


def step(run: Run) -> None:
    """Train each model in a process with exclusive use of the GPU."""
    run_in_turn(run, [Part("training", "measure", name, limit_s=60) for name in run.chosen(CASES)])


def path_of(run: Run, name: str) -> Path:
    return run.made / "training" / f"{name}.json"


def plan(run: Run, name: str) -> dict[str, Any]:
    """Write the plan of a case."""
    import fakexport as fe
    from fakexport.report import to_dict

    case = CASES[name]
    report = fe.plan(
        case.source, target=run.profile, dtype=case.dtype, workload="train", batch=case.batch,
        context=case.context, checkpointing=case.is_checkpointing,
    )  # fmt: skip
    (device,) = to_dict(report)["points"][0]["devices"]
    path_of(run, name).parent.mkdir(parents=True, exist_ok=True)
    path_of(run, name).write_text(json.dumps(device))
    return {"planned": intervals(device)}


def measure(run: Run, name: str) -> dict[str, Any]:
    """Run two steps with AdamW, and compare the memory with the plan."""
    from fakexport.models.sources import Workload, resolve
    from fakexport.planning.memory.training import loss_of

    case, device = CASES[name], json.loads(path_of(run, name).read_text())
    source = resolve(case.source, workload=Workload("train", case.batch, case.context or 16))
    turn()
    if run.is_pretend:
        return {"planned": intervals(device)}
    before = used_bytes()
    module, args, kwargs = model_on(source, run.device, getattr(torch, case.dtype))
    module.train()
    if case.is_checkpointing:
        module.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad])
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()

    def train() -> None:
        optimizer.zero_grad()
        loss_of(module(*args, **kwargs)).backward()
        optimizer.step()

    times = [round(milliseconds(train), 3) for _ in range(2)]
    return {**compared(device, measured_bytes(before)), "milliseconds": times}


PARTS = {"plan": plan, "measure": measure}
