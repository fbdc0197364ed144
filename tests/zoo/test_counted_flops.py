"""The operations of a plan are those that torch's counter finds in a run of the real model, to the FLOP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import fakexport as fe
from fakexport.planning.memory import ProgramSizes, SizeRequest
from tests.architectures.architecture import Architecture

BATCH, CONTEXT = 3, 40
COMMON = ("llama", "gpt2", "bert", "vit")
LANGUAGE = """
    qwen3 gemma2 gemma3_text mistral phi3 gpt_neox opt bloom falcon olmo2 granite cohere stablelm starcoder2
    mamba2 deepseek_v3 glm4 qwen2 lfm2 smollm3
"""
ENCODERS = "roberta distilbert electra albert modernbert mpnet fnet convbert deit beit convnext resnet dinov2"


@pytest.mark.parametrize(
    "model_type",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in COMMON),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in (LANGUAGE + ENCODERS).split()),
    ],
)
def test_flops_are_those_of_a_real_run_at_sizes_that_were_not_traced(model_type: str, tmp_path: Path) -> None:
    is_language = model_type in ("llama", "gpt2", *LANGUAGE.split())
    architecture = Architecture(model_type, "AutoModelForCausalLM" if is_language else "AutoModel", False)
    program = fe.export(architecture.source(tmp_path), target="cpu", dynamic_shapes="auto")
    request = SizeRequest(batch=BATCH, context=CONTEXT if "input_ids" in _names(program) else None)

    (point,) = fe.plan(program, batch=request.batch, context=request.context).points

    model = architecture.build().eval()
    inputs = _inputs(program, request)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs, **({"use_cache": False} if is_language else {}))
    assert point.costs is not None
    assert sum(device.flops for device in point.costs.devices) == counter.get_total_flops() > 0


def _names(program: torch.export.ExportedProgram) -> list[str]:
    return [str(name) for name in program.graph_signature.user_inputs]


def _inputs(program: torch.export.ExportedProgram, request: SizeRequest) -> dict[str, torch.Tensor]:
    """Return inputs of the shapes that the request means."""
    chosen = ProgramSizes(program).chosen(request)
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    sizes = {(dim.name, dim.dim): chosen.valued(dim.size) for dim in ProgramSizes(program).dims}
    found = {}
    for name in _names(program):
        value = values.get(name)
        if isinstance(value, torch.Tensor):
            shape = [sizes[name, index] for index in range(value.dim())]
            found[name] = torch.ones(shape, dtype=value.dtype)
    return found
