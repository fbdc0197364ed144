"""Step: compare what torch, transformers and the driver report about the device with the emulation."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import torch

from benchmarks.gpu_proof.parts import Part, run_parts
from benchmarks.gpu_proof.run import Run

QUESTIONS = """
torch.version.cuda | torch.cuda.is_available() | torch.cuda.device_count()
torch.cuda.get_device_name(0) | torch.cuda.get_device_capability(0) | torch.cuda.mem_get_info(0)[1]
torch.cuda.is_bf16_supported() | torch.cuda.is_bf16_supported(including_emulation=False)
torch.cuda.is_tf32_supported() | torch.cuda.get_arch_list() | torch.cuda.get_gencode_flags()
torch.cuda.is_initialized() | torch.cuda.current_device() | torch.cuda.get_allocator_backend()
torch.cuda.get_per_process_memory_fraction(0) | torch.cuda.get_sync_debug_mode()
torch.cuda.can_device_access_peer(0, 0) | torch.cuda.is_current_stream_capturing()
torch.cuda.get_rng_state(0).shape | torch.cuda.initial_seed() == torch.initial_seed()
torch.cuda.current_stream().cuda_stream | torch.cuda.memory_allocated() | len(torch.cuda.memory_stats())
torch.backends.cudnn.is_available() | torch.backends.cudnn.version() | torch.backends.cudnn.enabled
torch.backends.cuda.is_built() | torch.backends.cuda.is_flash_attention_available()
torch.backends.cuda.flash_sdp_enabled() | torch.backends.cuda.cudnn_sdp_enabled()
torch._C._get_sdp_priority_order() | torch.backends.cuda.matmul.allow_tf32
torch.backends.cuda.preferred_linalg_library() | torch.get_float32_matmul_precision()
torch.backends.mps.is_available() | torch.accelerator.current_accelerator()
torch.accelerator.device_count() | torch.accelerator.is_available()
torch.accelerator.get_device_capability(0) | torch.accelerator.current_device_index()
torch.get_device_module() | torch.device(0) | torch.utils._triton.has_triton()
torch.distributed.is_nccl_available()
transformers.utils.is_torch_cuda_available() | transformers.utils.is_torch_bf16_gpu_available()
transformers.utils.is_torch_tf32_available() | transformers.utils.is_flash_attn_2_available()
transformers.utils.is_torch_fp16_available_on_device("cuda")
transformers.utils.is_torch_bf16_available_on_device("cuda")
transformers.utils.is_kernels_available() | transformers.utils.is_flash_attn_3_available()
"""


def step(run: Run) -> None:
    """Query the device and its emulation in separate processes, and record each difference."""
    sides = ("emulated",) if run.is_pretend else ("real", "emulated")
    run_parts(run, [Part("facts", side, is_hidden=side == "emulated", limit_s=40) for side in sides])
    found = {side: json.loads((run.work / f"facts-{side}.json").read_text()) for side in sides}
    real, own = found.get("real", {}), found["emulated"]
    if run.is_pretend:
        run.record("facts", "answers", emulated=own)
        return
    for question in {**real, **own}:
        if real.get(question) != own.get(question):
            answers = {"real": real.get(question), "emulated": own.get(question)}
            run.record("facts", question, ok=False, **answers)
    equal = sum(real.get(question) == answer for question, answer in own.items())
    run.record("facts", "answers", ok=True, questions=len(own), equal=equal)


def emulated(run: Run, _: str) -> None:
    from fakexport.emulation.devices import emulate

    _write(run, "emulated", emulate(run.profile))


def real(run: Run, _: str) -> None:
    _write(run, "real", nullcontext())


def _write(run: Run, side: str, devices: AbstractContextManager[Any]) -> None:
    with devices:
        found = _answers()
    (run.work / f"facts-{side}.json").write_text(json.dumps(found))


def _answers() -> dict[str, str]:
    import transformers.utils

    import_module("torch.utils._triton")
    names = {"torch": torch, "transformers": transformers, "sys": sys, "os": os}
    found = {}
    for question in filter(None, map(str.strip, QUESTIONS.replace("\n", "|").split("|"))):
        try:
            found[question] = repr(eval(question, names))
        except Exception as error:
            found[question] = " ".join(f"{type(error).__name__}: {error}".split())[:160]
    properties = torch.cuda.get_device_properties(0)
    for name in (name for name in dir(properties) if not name.startswith("_")):
        found[f"properties.{name}"] = repr(getattr(properties, name))
    return found


PARTS = {"real": real, "emulated": emulated}
