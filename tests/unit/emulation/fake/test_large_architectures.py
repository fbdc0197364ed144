"""A model of published size."""

import pytest
import torch

from fakexport.emulation.devices import emulate
from fakexport.emulation.fake import build

transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def test_llama_405b_over_eight_devices_has_seven_boundaries():
    config = transformers.LlamaConfig(
        hidden_size=16384, intermediate_size=53248, num_hidden_layers=126, num_attention_heads=128,
        num_key_value_heads=8, vocab_size=128256,
    )  # fmt: skip

    with emulate("8xH100"):
        built = build(
            lambda: transformers.LlamaForCausalLM(config), device_map="balanced", dtype=torch.bfloat16
        )

    path = ["model.embed_tokens", *(f"model.layers.{i}" for i in range(126)), "model.norm", "lm_head"]
    devices = [built.placement.device_map[part] for part in path]
    assert devices == sorted(devices)
    assert len(set(devices)) == 8
    assert built.placement.device_map["model.rotary_emb"] == "cuda:0"
    assert sum(p.numel() for p in built.module.parameters()) > 405e9
