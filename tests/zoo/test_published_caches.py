"""The caches of models at full size next to the figures that their papers print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fakexport as fe
from fakexport.report import PlanReport

GIB = 2**30
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
    "max_position_embeddings": 2**20,
}  # fmt: skip
MISTRAL = {**LLAMA, "model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8}
JAMBA = {
    **MISTRAL, "model_type": "jamba", "vocab_size": 65536, "num_experts": 16, "num_experts_per_tok": 2,
    "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256,
    "use_mamba_kernels": False,
}  # fmt: skip
CONTEXT = 2**18
# The paper of Jamba (arXiv 2403.19887), table 1: 256K tokens of 16-bit cache take 128 GB, 32 GB and 4 GB.
# It leaves out the states of the 28 layers that are not attention. Mistral's window is that of version 0.1.
STATES = 28 * 8192 * (16 * 4 + 4 * 2)  # 16 in float32 and 4 of the convolution in bfloat16.
CASES = [
    pytest.param({**MISTRAL, "sliding_window": 4096}, GIB // 2, id="a window", marks=pytest.mark.slow),
    pytest.param(LLAMA, 128 * GIB, id="llama-2-7b", marks=pytest.mark.slow),
    pytest.param(
        {**MISTRAL, "sliding_window": None}, 32 * GIB, id="mistral-7b", marks=pytest.mark.exhaustive
    ),
    pytest.param(JAMBA, 4 * GIB + STATES, id="jamba", marks=pytest.mark.exhaustive),
]

# Bytes that a token takes in 16 bits, and what windows keep at any longer context. DeepSeek-V3: "Insights
# into DeepSeek-V3" (arXiv 2505.09343), table 1. gpt-oss-120b: by its config, 18 layers with 8 key and value
# heads of 64 numbers that keep everything, and 18 that keep 128 tokens.
PER_TOKEN = [
    pytest.param("deepseek-v3", "16xH200", 70_272, 0, id="deepseek-v3"),
    pytest.param("gpt-oss-120b", "8xH100", 18 * 2 * 8 * 64 * 2, 18 * 128 * 2 * 8 * 64 * 2, id="gpt-oss-120b"),
]
NUMBERS_OF_THE_CACHE_ITSELF = 4096
"""Lengths and windows, a few bytes a layer."""


@pytest.mark.parametrize(("config", "expected"), CASES)
def test_the_cache_is_as_large_as_the_paper_says(
    config: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(config))

    report = fe.plan(
        f"hf:{path}", target="4xB200", device_map="balanced", dtype="bfloat16", workload="decode", batch=1,
        context=CONTEXT,
    )  # fmt: skip

    assert expected <= _state(report) < expected + NUMBERS_OF_THE_CACHE_ITSELF


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "target", "per_token", "windows"), PER_TOKEN)
def test_a_token_takes_as_many_bytes_as_is_published(
    name: str, target: str, per_token: int, windows: int
) -> None:
    report = fe.plan(
        f"hf:examples/configs/{name}.json", target=target, device_map="balanced", dtype="bfloat16",
        workload="decode", batch=1, context=4096,
    )  # fmt: skip

    expected = per_token * 4096 + windows
    assert expected <= _state(report) < expected + NUMBERS_OF_THE_CACHE_ITSELF


def _state(report: PlanReport) -> int:
    return sum(device.state_after for device in report.points[0].devices)
